"""The attributes of a mixture of experts that has lost some, or parts of them."""

import copy
import math
from collections.abc import Iterator

from torch import Tensor, nn

from flwr_asyncdrop.submodel.narrowing.experts import IMPLEMENTATION

# Grouped matrix products need rows of a multiple of as many bytes.
_GROUPED, _ALIGNMENT = "grouped_mm", 16
_LOOP = "eager"  # needs no alignment, and no more memory


def follow_experts(narrow: nn.Module, full: nn.Module) -> None:
    """Set the number of experts in the modules of `narrow`, a copy of `full`.

    It is an attribute whose name ends in ``experts`` and whose value is as many as a
    tensor of the module, or of a direct child, had along its first dim. Experts that
    Hugging Face multiplies in groups take turns where the kernel would refuse widths.
    """
    for before, after in zip(full.modules(), narrow.modules(), strict=True):
        for name, number in _counts(before):
            left = _left(before, after, number)
            if left is not None:
                setattr(after, name, left)
        if _is_refused(before, after):
            # Modules share their configuration.
            own = copy.copy(after.config)
            setattr(own, IMPLEMENTATION, _LOOP)
            after.config = own


def _counts(module: nn.Module) -> Iterator[tuple[str, int]]:
    for name, value in list(vars(module).items()):
        words = name.lower().strip("_").split("_")
        if type(value) is int and words[-1] == "experts" and "shared" not in words:
            yield name, value


def _left(full: nn.Module, narrow: nn.Module, number: int) -> int | None:
    """Return how many of `number` rows are left; None if that is all, or not clear."""
    own = _lengths(full, narrow, number)
    pairs = zip(full.children(), narrow.children(), strict=True)
    lengths = own or {n for pair in pairs for n in _lengths(*pair, number)}
    return lengths.pop() if len(lengths) == 1 else None


def _lengths(full: nn.Module, narrow: nn.Module, number: int) -> set[int]:
    """Return the lengths of tensors that have narrowed from `number` rows."""
    pairs = zip(_own(full), _own(narrow), strict=True)
    kept = {len(small) for big, small in pairs if big.dim() and len(big) == number}
    return kept - {number, 0}


def _is_refused(full: nn.Module, narrow: nn.Module) -> bool:
    """Whether narrower matrices can no longer be multiplied in groups."""
    config = getattr(narrow, "config", None)
    if getattr(config, IMPLEMENTATION, None) != _GROUPED:
        return False
    return any(
        big.shape != small.shape and math.gcd(*_row_bytes(small)) % _ALIGNMENT
        for big, small in zip(_own(full), _own(narrow), strict=True)
        if small.dim() == 3
    )


def _row_bytes(matrices: Tensor) -> tuple[int, int]:
    rows, columns = matrices.shape[1:]
    return rows * matrices.element_size(), columns * matrices.element_size()


def _own(module: nn.Module) -> list[Tensor]:
    own = [*module._parameters.values(), *module._buffers.values()]
    return [tensor for tensor in own if tensor is not None]
