"""The forward passes that a plan is traced and tried on: inputs, modes and paths."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from flwr_asyncdrop.submodel.probing.drawn import Watch
from flwr_asyncdrop.submodel.probing.draws import MIDDLE, FixedDraws, Outcomes
from flwr_asyncdrop.submodel.probing.nested import map_tensors, parts, tensors_within
from flwr_asyncdrop.submodel.probing.precision import as_precise
from flwr_asyncdrop.submodel.probing.private_copy import is_constant
from flwr_asyncdrop.submodel.types import Example, is_inexact

_MOST_LENGTHS = 2  # different sizes of dims beside the batch that are varied
_MOST_GROWTH = 64


@dataclass(frozen=True)
class Pass:
    """One way to run a model.

    Attributes
    ----------
    example : Example
        The arguments.
    training : bool
        Whether the model is in training mode.
    level : float
        Where in their range random numbers lie.
    outcomes : mapping of int to bool
        Truth values that are set, by their number in the pass.
    follows : bool
        Whether numbers that Python draws are followed. Some models take plain ones
        only.
    watched : bool
        Whether a dispatch mode fixes random numbers and truth values. Some models do
        not run under one.
    """

    example: Example
    training: bool
    level: float = MIDDLE
    outcomes: Outcomes = field(default_factory=dict)
    follows: bool = True
    watched: bool = True

    def draws(self, watch: Watch | None = None) -> FixedDraws:
        """Return the context of what is drawn, and of the path."""
        return FixedDraws(self.level, self.outcomes, follows=self.follows, watch=watch)

    def cast(self, change: Callable[[Tensor], Tensor]) -> "Pass":
        """Return the pass with `change` applied to its tensors."""
        return replace(self, example=mapped(self.example, change))


def in_precision(way: Pass, dtype: torch.dtype) -> Pass:
    """Return the pass with its real and complex tensors in the precision of `dtype`."""
    return way.cast(lambda tensor: _copied(tensor, dtype))


def mapped(example: Example, change: Callable[[Tensor], Tensor]) -> Example:
    """Return the example with `change` applied to its tensors."""
    return Example(
        map_tensors(change, example.args), map_tensors(change, example.kwargs)
    )


def prepared(
    example: Example, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[Example]:
    """Yield copies of the inputs in `dtype`: blank ones become noise.

    If the model does not take that, only the largest of them does. The next noise is
    within [0, 1), and the last alternative none: it is no label.
    """
    given = mapped(example, lambda tensor: _copied(tensor, dtype))
    blank = [t for t in tensors_within([given.args, given.kwargs]) if _is_blank(t)]
    largest = sorted(blank, key=Tensor.numel)[-1:]

    def noisy(those: Sequence[Tensor], draw: Callable[..., Tensor]) -> Example:
        noise = {id(t): draw(t.clone(), generator=generator) for t in those}
        return mapped(given, lambda tensor: noise.get(id(tensor), tensor))

    for draw in (Tensor.normal_, Tensor.uniform_):
        for those in (blank, largest)[: len(blank)]:
            yield noisy(those, draw)
    yield given


def _is_blank(tensor: Tensor) -> bool:
    real = tensor.is_floating_point() and tensor.layout is torch.strided
    return real and is_constant(tensor)


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_meta:
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().to("cpu", as_precise(tensor.dtype, dtype), copy=True)


def variations(
    example: Example, vocabulary: int, *, thorough: bool, grows: bool = False
) -> list[list[Example]]:
    """Return other inputs of the kind of `example`: lists of alternatives.

    Of each list the first that the model takes is of use. They have other batch
    sizes, lengths and values. `vocabulary` is the number of rows of the smallest
    embedding, 0 without one. Without `thorough` one other size of each kind will do.
    If it only `grows`, sizes are larger and values the same: indices stay right.
    Packed sequences keep their sizes, which torch does not check: it would write beyond
    its memory.
    """
    generator = torch.Generator().manual_seed(0)
    packed, sizes = _packed(example)
    tensors = tensors_within([example.args, example.kwargs])
    free = [tensor for tensor in tensors if id(tensor) not in {*packed, *sizes}]
    if not any(tensor.dim() for tensor in tensors):
        return []
    first = max(free, key=Tensor.dim, default=torch.empty(()))

    def resized(dims: Mapping[int, Mapping[int, int]]) -> Example:
        return _resized(example, dims, {*packed, *sizes})

    batches = [
        resized({0: {size: n}}) for size in first.shape[:1] for n in _others(size)
    ]
    lengths = [
        resized({dim: {length: other} for dim in range(1, first.dim())})
        for length in _lengths(first)
        for other in _others(length, areas=first.dim() > 3)
    ]
    if grows:
        larger = [each for each in batches + lengths if _size(each) > _size(example)]
        return [[each] for each in larger]
    masked = sum(map(_is_whole, free)) > 1
    draws = [_new_values(generator, most, masked, sizes) for most in (vocabulary, 0)]

    def valued(kinds: Sequence[Example]) -> list[Example]:
        # Last, where no other values will do, e.g. for labels: the same ones.
        others = [mapped(kind, draw) for kind in kinds for draw in draws]
        return [*others, *(kind for kind in kinds if kind is not example)]

    if thorough:
        return [valued([kind]) for kind in [*batches, *lengths, example]]
    batches.sort(key=lambda other: _size(other) > _size(example))  # small ones first
    return [valued(batches), valued(lengths)]


def _size(example: Example) -> int:
    return sum(t.numel() for t in tensors_within([example.args, example.kwargs]))


def _lengths(tensor: Tensor) -> Sequence[int]:
    """Return the sizes of dims beside the batch, last ones first."""
    sizes = dict.fromkeys(size for size in reversed(tensor.shape[1:]) if size > 1)
    return list(sizes)[:_MOST_LENGTHS]


def _others(size: int, *, areas: bool = False) -> Sequence[int]:
    """Return other sizes of a dim: odd and even ones, more, less, and one.

    None is twice as large where `areas` grow with its square.
    """
    sizes = [size + 1, 2 * size + 1, size // 2, 1]
    del sizes[1 : 1 + areas]
    return [new for new in dict.fromkeys(sizes) if 0 < new != size]


def _packed(example: Example) -> tuple[set[int], set[int]]:
    """Return the ``id()`` of what packed sequences hold: of the data, of the rest."""
    found = [
        part
        for part in parts([example.args, example.kwargs])
        if isinstance(part, PackedSequence)
    ]
    return {id(k.data) for k in found}, {id(t) for k in found for t in k[1:]}


def _resized(
    example: Example, sizes: Mapping[int, Mapping[int, int]], fixed: Collection[int]
) -> Example:
    """Cut or repeat tensors along the dims of the sizes that change.

    Not those whose ``id()`` is one of `fixed`.
    """

    def resize(tensor: Tensor) -> Tensor:
        if id(tensor) in fixed:
            return tensor
        for dim in range(tensor.dim()):
            new = sizes.get(dim, {}).get(tensor.shape[dim])
            if new is not None and tensor.numel() and tensor.layout is torch.strided:
                positions = torch.arange(new) % tensor.shape[dim]
                tensor = tensor.index_select(dim, positions)
        return tensor

    return mapped(example, resize)


def _new_values(
    generator: torch.Generator, vocabulary: int, masked: bool, fixed: Collection[int]
) -> Callable[[Tensor], Tensor]:
    """Return what draws other values: noise as large as they are, other numbers.

    Whole numbers are drawn up to the largest in the tensor, or below `vocabulary`.
    Where there are other whole numbers (`masked`), zeros and ones are a mask: they
    stay. And other numbers may be lengths, so they do not grow without bound. A tensor
    whose ``id()`` is one of `fixed` stays, too.
    """

    def change(tensor: Tensor) -> Tensor:
        if id(tensor) in fixed or tensor.layout is not torch.strided:
            return tensor
        if not tensor.numel():
            return tensor
        if is_inexact(tensor):
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            return tensor + (tensor.abs().mean() + 0.1) * noise
        high = int(tensor.max())
        if tensor.dtype is torch.bool or (masked and high <= 1):
            return tensor
        most = _MOST_GROWTH * (high + 1) if masked else vocabulary
        top = max(high + 1, min(vocabulary, most))
        low = min(int(tensor.min()), 1, top - 1)
        drawn = torch.randint(low, top, tensor.shape, generator=generator)
        return drawn.to(tensor.dtype)

    return change


def _is_whole(tensor: Tensor) -> bool:
    return not is_inexact(tensor) and tensor.dtype is not torch.bool
