"""Which modules have what was loaded into them, and nothing of their own."""

from collections.abc import Iterable
from itertools import chain
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from flwr_asyncdrop.completeness.contents import digest_of
from flwr_asyncdrop.submodel import State

_KEPT = 2
"""Versions of each source: one may be about to be loaded."""

_Digests = frozenset[str]
_ByDtype = dict[torch.dtype, _Digests]


class LoadedModels:
    """Tells models into which a version of the global model is loaded from others.

    A user's module with the global model's shapes is loaded anew by each evaluation, or
    by a hook; or it has something of its own, as an average of versions has, or the
    best of them. Its parameters tell: each is that of a recent version, or what it was
    when the module was first seen in its dtype; a module in half precision has what
    loading rounds to. Buffers do not count: batch normalisation may have been
    calibrated since.
    """

    def __init__(self) -> None:
        self._first: WeakKeyDictionary[nn.Module, _ByDtype] = WeakKeyDictionary()
        self._dtypes: set[torch.dtype] = set()
        # A thread that evaluates notes versions, too: each tuple stays as it is.
        self._versions: dict[str, tuple[_Digests, ...]] = {}

    @property
    def has_any(self) -> bool:
        """Whether a module was seen."""
        return len(self._first) > 0

    def note(self, source: str, arrays: State) -> None:
        """Note a version that modules may be loaded with, from now on."""
        rounded = (
            tensor.to(dtype)
            for tensor in arrays.values()
            if tensor.is_floating_point()
            for dtype in self._dtypes - {tensor.dtype}
        )
        digests = _digests(chain(arrays.values(), rounded))
        self._versions[source] = (*self._versions.get(source, ()), digests)[-_KEPT:]

    def has(self, module: nn.Module) -> bool:
        """Return whether a module has what was loaded into it."""
        own: _ByDtype = {}
        for dtype in {each.dtype for each in module.parameters()}:
            own[dtype] = _digests(p for p in module.parameters() if p.dtype == dtype)
        self._dtypes.update(dtype for dtype in own if dtype.is_floating_point)
        first = self._first.setdefault(module, {})
        for dtype, digests in own.items():
            first.setdefault(dtype, digests)
        recent = chain.from_iterable([*self._versions.values()])
        known = frozenset[str]().union(*first.values(), *recent)
        return all(digests <= known for digests in own.values())


def _digests(tensors: Iterable[Tensor]) -> _Digests:
    return frozenset(map(digest_of, tensors))
