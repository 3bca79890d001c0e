"""Size attributes of modules without a patch, set by what their names mean.

Attention modules keep the number of their heads, and other modules the width of an
inner projection, in attributes such as ``num_heads``, ``n_head``, ``all_head_size`` or
``inner_dim``. They follow from the full module and from what has narrowed. A name that
means something else makes the narrower module fail, and verification refuses it.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from flwr_asyncdrop.submodel.naming import (
    is_fused,
    is_head_count,
    is_head_dim,
    is_inner_width,
    is_of_keys,
    is_of_queries,
    is_repeat_count,
    is_width,
    names_read,
)
from flwr_asyncdrop.submodel.narrowing.patches import has_patch, makes_last_dim
from flwr_asyncdrop.submodel.plan import Plan

_MEANINGS = (is_head_count, is_repeat_count, is_head_dim, is_width)


@dataclass(frozen=True, eq=False)
class _Axis:
    """One dim of a tensor of a module, or of a layer that is its child."""

    owner: str  # the child's name, or the parameter's
    tensor: Tensor
    dim: int
    size: int
    is_input: bool  # whether the layer sums over it
    is_own: bool = False  # of the module's own tensor


@dataclass(frozen=True)
class _Heads:
    """How many heads attention has, for queries and for keys, and how wide each is."""

    queries: int
    keys: int
    dim: int

    def widths(self) -> tuple[int, ...]:
        """Return the widths of the projections that heads are cut out of."""
        queries, keys = self.queries * self.dim, self.keys * self.dim
        return queries, keys, 2 * keys, queries + 2 * keys


@dataclass(frozen=True)
class _Sizes:
    """The size attributes that a module's code reads, its own and its config's."""

    own: Mapping[str, int]
    shared: Mapping[str, int]
    heads: _Heads | None
    axes: Sequence[_Axis]  # of the full module

    def of_heads(self) -> Iterator[_Axis]:
        """Yield the axes that tell how many heads are left."""
        if self.heads is not None:
            numbers = {self.heads.queries, self.heads.keys} - {1}
            whole = numbers | set(self.heads.widths())
            yield from (axis for axis in self.axes if axis.size in whole)

    def of_width(self, name: str) -> list[_Axis]:
        """Return the axes that a width attribute speaks of, if not of heads."""
        size = {**self.shared, **self.own}[name]
        if not is_width(name) or is_head_count(name) or is_head_dim(name):
            return []
        if self.heads is not None and size in self.heads.widths():
            return []
        return [axis for axis in self.axes if axis.size == size]


def follow_conventions(narrow: nn.Module, full: nn.Module) -> None:
    """Set the size attributes of the modules of `narrow`, a narrower copy of `full`.

    Only in modules without a patch, of which own tensors or those of direct children
    have narrowed, and only what their code reads, where the name says how many heads
    there are or how wide an inner projection is. A configuration that modules share is
    not changed: a module that reads it gets a copy of its own.
    """
    parameters = zip(full.parameters(), narrow.parameters(), strict=True)
    small: dict[Tensor, Tensor] = dict(parameters)
    for before, after in zip(full.modules(), narrow.modules(), strict=True):
        sizes = _sizes_of(before)
        if sizes is None:
            continue
        lengths = [small[axis.tensor].shape[axis.dim] for axis in sizes.axes]
        if all(lengths) and any(
            axis.size != length
            for axis, length in zip(sizes.axes, lengths, strict=True)
        ):
            _follow(after, sizes, dict(zip(sizes.axes, lengths, strict=True)))


def unclear_groups(model: nn.Module, plan: Plan) -> dict[int, str]:
    """Return which groups of `plan` leave open what an attribute should become.

    A submodel's shapes alone must tell. They do not if parts of heads could go, or if
    units of different groups narrow what one attribute speaks of.
    """
    names: dict[Tensor, str] = {
        tensor: name for name, tensor in model.named_parameters()
    }

    def units(axis: _Axis) -> Tensor | None:
        return plan.axes.get(names[axis.tensor], {}).get(axis.dim)

    unclear: dict[int, str] = {}
    for module in model.modules():
        sizes = _sizes_of(module)
        if sizes is not None:
            for axis in _unclear_axes(sizes, units):
                name = f"the size attributes of {type(module).__name__}"
                labels = units(axis)
                for group in [] if labels is None else plan.groups_of(labels):
                    unclear[group] = f"{name} would not follow from its shapes"
    return unclear


def _unclear_axes(
    sizes: _Sizes, units: Callable[[_Axis], Tensor | None]
) -> Iterator[_Axis]:
    for axis in sizes.of_heads():
        labels = units(axis)
        if labels is not None and sizes.heads is not None:
            block = sizes.heads.dim if axis.size % sizes.heads.dim == 0 else 1
            if axis.size in (sizes.heads.queries, sizes.heads.keys):
                block = 1
            rows = labels.view(-1, block)
            if bool((rows != rows[:, :1]).any()):
                yield axis
    for name in {**sizes.shared, **sizes.own}:
        axes = [k for k in sizes.of_width(name) if units(k) is not None]
        if len({tuple(_labels(units(axis))) for axis in axes}) > 1:
            yield from axes


def _labels(units: Tensor | None) -> list[int]:
    return [] if units is None else units.tolist()


def _sizes_of(module: nn.Module) -> _Sizes | None:
    """Return the module's size attributes, None if it has none or has a patch."""
    if has_patch(module):
        return None
    read = names_read(type(module))  # type: ignore[arg-type]  # it is hashable
    own = _numbers(vars(module))
    config = vars(module).get("config") if "config" in read else None
    shared = _numbers(getattr(config, "__dict__", {}))
    axes = _inner(list(_axes(module)))
    heads = _heads({**shared, **own}, axes)
    own = {name: size for name, size in own.items() if name in read}
    shared = {name: size for name, size in shared.items() if name in read}
    return _Sizes(own, shared, heads, axes) if own or shared else None


def _numbers(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return the attributes that are counts or widths."""
    return {
        name: value
        for name, value in attributes.items()
        if type(value) is int and value > 0 and any(says(name) for says in _MEANINGS)
    }


def _heads(sizes: Mapping[str, int], axes: Sequence[_Axis]) -> _Heads | None:
    """Return the heads that the attributes speak of."""
    counts = {name: size for name, size in sizes.items() if is_head_count(name)}
    queries = {size for name, size in counts.items() if not is_of_keys(name)}
    keys = {size for name, size in counts.items() if is_of_keys(name)}
    if len(queries) != 1 or len(keys) > 1:
        return None
    (number,) = queries
    shared = keys.pop() if keys else number
    dims = {size for name, size in sizes.items() if is_head_dim(name)}
    dims = dims or set(_head_dims(number, shared, axes))
    return _Heads(number, shared, dims.pop()) if len(dims) == 1 else None


def _head_dims(queries: int, keys: int, axes: Sequence[_Axis]) -> Iterator[int]:
    """Yield how wide a head is by the projections that make queries."""
    for axis in axes:
        if not axis.is_input and is_of_queries(axis.owner) and axis.tensor.dim() > 1:
            parts = queries + 2 * keys if is_fused(axis.owner) else queries
            if axis.size % parts == 0:
                yield axis.size // parts


def _follow(narrow: nn.Module, sizes: _Sizes, lengths: Mapping[_Axis, int]) -> None:
    kept = _kept_heads(sizes, lengths)
    for name in sizes.own:
        setattr(narrow, name, _new_size(sizes, name, sizes.own[name], kept, lengths))
    changed = {
        name: size
        for name, old in sizes.shared.items()
        if (size := _new_size(sizes, name, old, kept, lengths)) != old
    }
    if changed:
        own = copy.copy(narrow.config)
        vars(own).update(changed)  # it may be a frozen dataclass
        narrow.config = own


def _new_size(
    sizes: _Sizes,
    name: str,
    size: int,
    kept: _Heads | None,
    lengths: Mapping[_Axis, int],
) -> int:
    """Return what an attribute of the narrower module should be."""
    full = sizes.heads
    if full is not None and kept is not None:
        if is_head_count(name):
            return kept.keys if is_of_keys(name) else kept.queries
        if is_repeat_count(name) and size * full.keys == full.queries:
            return kept.queries // kept.keys
        if is_width(name) and not is_head_dim(name) and size in full.widths():
            return kept.widths()[full.widths().index(size)]
    found = {lengths[axis] for axis in sizes.of_width(name)}
    narrowed = found - {size}
    # As wide as something that did not narrow: it may be what goes into the module.
    if len(narrowed) == 1 and (len(found) == 1 or is_inner_width(name)):
        return narrowed.pop()
    return size


def _kept_heads(sizes: _Sizes, lengths: Mapping[_Axis, int]) -> _Heads | None:
    """Return how many heads are left, None if the axes do not tell."""
    full, axes = sizes.heads, list(sizes.of_heads())
    if full is None:
        return None
    ratios = {axis: Fraction(lengths[axis], axis.size) for axis in axes}
    narrowed = {axis: ratio for axis, ratio in ratios.items() if ratio != 1}
    consumed = [ratio for axis, ratio in narrowed.items() if axis.is_input]
    queries = _scaled(full.queries, narrowed.values())
    queries = queries or _scaled(full.queries, consumed)
    if queries is None:
        return None
    if full.keys == full.queries:
        return _Heads(queries, queries, full.dim)
    made = [axis for axis in axes if not axis.is_input]
    own = [k for k in made if is_of_keys(k.owner) and not is_fused(k.owner)]
    keys = _scaled(full.keys, [ratios[axis] for axis in own])
    fused = {lengths[axis] for axis in made if axis.size == full.widths()[-1]}
    if keys is None and len(fused) == 1:
        keys = (fused.pop() // full.dim - queries) // 2
    return _Heads(queries, keys, full.dim) if keys else None


def _scaled(number: int, ratios: Iterable[Fraction]) -> int | None:
    """Return `number` scaled by the ratios, None if they differ."""
    scaled = {number * ratio for ratio in ratios}
    if len(scaled) != 1:
        return None
    (only,) = scaled
    return int(only) if only.denominator == 1 else None


def _inner(axes: Sequence[_Axis]) -> list[_Axis]:
    """Return the axes without those of what goes into attention and comes out of it."""
    made = {k.owner for k in axes if is_of_queries(k.owner) or is_of_keys(k.owner)}
    if not made:
        return list(axes)
    return [k for k in axes if k.is_own or k.is_input != (k.owner in made)]


def _axes(module: nn.Module) -> Iterator[_Axis]:
    """Yield the axes of a module's own tensors and of its children's weights."""
    for name, tensor in _own(module):
        for dim, size in enumerate(tensor.shape):
            if size > 1:
                yield _Axis(name, tensor, dim, size, is_input=False, is_own=True)
    for name, child in module.named_children():
        for layer in _layers(child):
            yield from _weight_axes(name, layer)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a layer, or the layers of a sequence or of a wrapper around one layer."""
    yield module
    children = list(module.children())
    is_wrapper = sum(map(_has_matrix, children)) == 1
    if is_wrapper or isinstance(module, (nn.Sequential, nn.ModuleList)):
        for child in children:
            yield from _layers(child)


def _weight_axes(name: str, layer: nn.Module) -> Iterator[_Axis]:
    for _, tensor in _own(layer):
        made = tensor.dim() - 1 if makes_last_dim(layer) else 0
        for dim, size in enumerate(tensor.shape[:2]):
            if size > 1:
                is_input = tensor.dim() > 1 and dim != made
                yield _Axis(name, tensor, dim, size, is_input)


def _own(module: nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.named_parameters(recurse=False))


def _has_matrix(module: nn.Module) -> bool:
    return any(tensor.dim() > 1 for tensor in module.parameters())
