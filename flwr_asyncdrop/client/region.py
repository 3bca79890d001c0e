"""Where the tensors of a task lie in those of the full model."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Self

import torch
from torch import Tensor

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ShapeError

Index = tuple[Tensor, ...] | EllipsisType

_WHOLE: Mapping[int, Tensor] = {}
_FULL: Mapping[int, int] = {}


@dataclass(frozen=True)
class Region:
    """The kept part of a full-size tensor.

    Attributes
    ----------
    index : tuple of Tensor, or ...
        What takes the part out of the full-size tensor: the kept positions of each dim,
        shaped for that; ``...`` if all of them are kept.
    full : tuple of int
        Shape of the tensor in the full model.
    is_masked : bool
        Whether the client has the tensor at full size, with dropped units in it.
    """

    index: Index
    full: tuple[int, ...]
    is_masked: bool

    @property
    def own_index(self) -> Index:
        """What takes the part out of the client's tensor, as `index` does."""
        return self.index if self.is_masked else ...

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], kept: wire.Kept) -> Self:
        """Return the region of a client's tensor; ShapeError if it is another one."""
        dims, sizes = kept.indices.get(name, _WHOLE), kept.sizes.get(name, _FULL)
        full = tuple(sizes.get(dim, size) for dim, size in enumerate(shape))
        positions = [dims.get(dim, torch.arange(n)) for dim, n in enumerate(full)]
        part = tuple(len(each) for each in positions)
        if shape not in (part, full):
            raise ShapeError(
                f"{name} has shape {shape}, and the message has {part} of {full}: call "
                "load_submodel with the arrays of this message first"
            )
        if part == full:
            return cls(..., full, is_masked=False)
        shaped = (
            each.view(-1, *[1] * (len(full) - dim - 1))
            for dim, each in enumerate(positions)
        )
        return cls(tuple(shaped), full, shape == full)
