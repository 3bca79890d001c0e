"""Size attributes of modules without a patch, set by what their names mean.

Attention modules keep the number of their heads, and other modules the width of an
inner projection, in attributes such as ``num_heads``, ``n_head``, ``all_head_size`` or
``inner_dim``. They follow from the full module and from what has narrowed. A name that
means something else makes the narrower module fail, and verification refuses it.
"""

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from flwr_asyncdrop.submodel.patches import has_patch, makes_last_dim

_KEYS = {"k", "v", "kv", "key", "value", "keys", "values"}
_HEADS = {"h", "head", "heads", "nhead", "nheads"}
_REPEATS = {"groups", "rep", "repeats"}
_SIZES = {"dim", "dims", "size", "width", "embd", "embed", "channels", "features"}
_SIZES |= {"model", "inner", "hidden", "attn", "nf", "units"}
_OTHER_SIZES = {"kernel", "window", "patch", "vocab", "chunk", "block", "image"}
_INNER = {"inner", "intermediate", "ffn", "ff", "mlp", "all", "attn", "split"}


@dataclass(frozen=True)
class _Axis:
    """One dim of a tensor: its length in the full module and in the narrow one."""

    owner: str  # the child module, or the parameter, that has it
    old: int
    new: int
    is_input: bool  # whether the child sums over it

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.new, self.old)


@dataclass(frozen=True)
class _Heads:
    """How many heads attention has, and how many keys and values have, if fewer."""

    queries: int
    keys: int
    dim: int  # 0 if no attribute says

    def widths(self) -> tuple[int, ...]:
        """Return the widths of the projections that heads are cut out of."""
        queries, keys = self.queries * self.dim, self.keys * self.dim
        return queries, keys, 2 * keys, queries + 2 * keys


def follow_conventions(narrow: nn.Module, full: nn.Module) -> None:
    """Set the size attributes of the modules of `narrow`, a narrower copy of `full`.

    Only modules without a patch, of which own tensors or those of direct children have
    narrowed, and only attributes whose names say how many heads there are or how wide
    an inner projection is. A configuration that modules share is not changed: a module
    that reads it in its forward pass gets a copy of its own.
    """
    for before, after in zip(full.modules(), narrow.modules(), strict=True):
        if not has_patch(before):
            axes = list(_axes(before, after))
            if any(axis.old != axis.new for axis in axes):
                _follow(after, before, axes)


def _follow(narrow: nn.Module, full: nn.Module, axes: Sequence[_Axis]) -> None:
    sizes = _sizes(vars(full))
    config = getattr(full, "config", None)
    used = _names_used(type(full)) if config is not None else frozenset[str]()
    if "config" in used:
        shared = _sizes(getattr(config, "__dict__", {}))
        shared = {name: size for name, size in shared.items() if name in used}
    else:
        shared = {}
    heads = _heads({**shared, **sizes})
    kept = _narrowed_heads(heads, axes) if heads else None
    for name, size in _changed(sizes, heads, kept, axes):
        setattr(narrow, name, size)
    changed = dict(_changed(shared, heads, kept, axes))
    if changed:
        own = copy.copy(narrow.config)
        for name, size in changed.items():
            setattr(own, name, size)
        narrow.config = own  # type: ignore[assignment]  # not a module or tensor


def _sizes(attributes: Mapping[str, Any]) -> dict[str, int]:
    return {k: v for k, v in attributes.items() if type(v) is int and v > 0}


def _changed(
    sizes: Mapping[str, int],
    heads: _Heads | None,
    kept: _Heads | None,
    axes: Sequence[_Axis],
) -> Iterator[tuple[str, int]]:
    """Yield the attributes that change, with their new values."""
    for name, size in sizes.items():
        new = None
        if _is_heads(name):
            if heads and kept:
                new = kept.keys if _is_of_keys(name) else kept.queries
        elif _is_repeats(name):
            if heads and kept and size * heads.keys == heads.queries:
                new = kept.queries // kept.keys
        elif _is_width(name):
            new = _narrowed_width(name, size, heads, kept, axes)
        if new is not None and new != size:
            yield name, new


def _heads(sizes: Mapping[str, int]) -> _Heads | None:
    """Return the heads that the attributes speak of."""
    queries = {v for k, v in sizes.items() if _is_heads(k) and not _is_of_keys(k)}
    keys = {v for k, v in sizes.items() if _is_heads(k) and _is_of_keys(k)}
    dims = {v for k, v in sizes.items() if _is_head_dim(k)}
    if len(queries) != 1 or len(keys) > 1:
        return None
    (number,) = queries
    return _Heads(number, *(keys or queries), dims.pop() if len(dims) == 1 else 0)


def _narrowed_heads(heads: _Heads, axes: Sequence[_Axis]) -> _Heads | None:
    """Return how many heads are left, None if the axes do not tell."""
    whole = {heads.queries, heads.keys, *heads.widths()}
    cut = [axis for axis in axes if not heads.dim or axis.old in whole]
    narrowed = [axis for axis in cut if axis.old != axis.new]
    consumers = [axis for axis in narrowed if axis.is_input]
    queries = _scaled(heads.queries, narrowed) or _scaled(heads.queries, consumers)
    if queries is None:
        return None
    return _Heads(queries, _narrowed_keys(heads, queries, cut), heads.dim)


def _narrowed_keys(heads: _Heads, queries: int, axes: Sequence[_Axis]) -> int:
    if heads.keys == heads.queries:
        return queries
    own = [k for k in axes if not k.is_input and _is_of_keys(k.owner)]
    found = _scaled(heads.keys, own)
    if found is not None:
        return found
    fused = {k.new for k in axes if k.old == heads.widths()[-1] and not k.is_input}
    if heads.dim and len(fused) == 1:
        keys, rest = divmod(fused.pop() // heads.dim - queries, 2)
        if keys > 0 and not rest:
            return keys
    keys = Fraction(heads.keys * queries, heads.queries)
    return int(keys) if keys.denominator == 1 else heads.keys


def _scaled(number: int, axes: Iterable[_Axis]) -> int | None:
    """Return `number` scaled as the axes are, None if they differ."""
    scaled = {number * axis.ratio for axis in axes if axis.old % number == 0}
    if len(scaled) != 1:
        return None
    (only,) = scaled
    return int(only) if only.denominator == 1 else None


def _narrowed_width(
    name: str,
    size: int,
    heads: _Heads | None,
    kept: _Heads | None,
    axes: Sequence[_Axis],
) -> int | None:
    if heads and kept and heads != kept and heads.dim:
        widths = dict(zip(heads.widths(), kept.widths(), strict=True))
        if size in widths:
            return widths[size]
    found = {axis.new for axis in axes if axis.old == size}
    if len(found) == 1:
        return found.pop()
    # As wide as something that did not narrow, most often what goes into the module.
    # Attention has no use for that width after its first projection.
    narrowed = found - {size}
    is_inner = bool(kept and heads != kept) or bool(_words(name) & _INNER)
    return narrowed.pop() if len(narrowed) == 1 and is_inner else None


def _axes(full: nn.Module, narrow: nn.Module) -> Iterator[_Axis]:
    """Yield the axes of a module's own tensors and of its children's weights."""
    for name, tensor in _own(full).items():
        for old, new in zip(tensor.shape, _own(narrow)[name].shape, strict=True):
            if old > 1 and new:
                yield _Axis(name, old, new, is_input=False)
    for name, child in full.named_children():
        before, after = child, narrow.get_submodule(name)
        while len(inner := [m for m in before.children() if _has_weights(m)]) == 1:
            if _own(before):
                break
            place = list(before.children()).index(inner[0])
            before, after = inner[0], list(after.children())[place]
        parts = [(before, after)]
        if isinstance(before, (nn.Sequential, nn.ModuleList)):
            parts = list(zip(before.children(), after.children(), strict=True))
        for big, small in parts:
            yield from _weight_axes(name, big, small)


def _weight_axes(name: str, full: nn.Module, narrow: nn.Module) -> Iterator[_Axis]:
    for key, tensor in _own(full).items():
        makes = tensor.dim() - 1 if makes_last_dim(full) else 0
        sizes = zip(tensor.shape, _own(narrow)[key].shape, strict=True)
        for dim, (old, new) in enumerate(sizes):
            if old > 1 and new and dim < 2:
                yield _Axis(name, old, new, is_input=tensor.dim() > 1 and dim != makes)


def _own(module: nn.Module) -> MutableMapping[str, Tensor]:
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _names_used(kind: type) -> frozenset[str]:
    """Return the names of all attributes that the class's own code reads."""
    names: set[str] = set()
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for member in vars(base).values():
            function = inspect.unwrap(member) if callable(member) else member
            if inspect.isfunction(function) and function.__name__ != "__init__":
                names.update(function.__code__.co_names)
    return frozenset(names)


def _words(name: str) -> set[str]:
    return set(name.lower().strip("_").split("_"))


def _is_heads(name: str) -> bool:
    last = name.lower().split("_")[-1]
    return last in _HEADS and not _words(name) & {"per", "dim", "size", "mask"}


def _is_head_dim(name: str) -> bool:
    words = _words(name)
    if words <= {"d", "k", "kv"} and "d" in words and len(words) > 1:
        return True
    if "proj" in words and words & _KEYS:
        return True
    return "head" in words and bool(words & {"dim", "size", "d"}) and "all" not in words


def _is_of_keys(name: str) -> bool:
    return bool(_words(name) & _KEYS) or name.lower() in ("wk", "wv")


def _is_repeats(name: str) -> bool:
    words = _words(name)
    return bool(words & _REPEATS) and bool(words & (_KEYS | {"n"}))


def _is_width(name: str) -> bool:
    words = _words(name)
    return bool(words & (_SIZES | _INNER)) and not words & _OTHER_SIZES
