"""Tensors that share memory: what is written through one changes the others."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.weak import TensorWeakRef

from flwr_asyncdrop.submodel.discovery.call import Operand
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along

_OVERWRITTEN = "overwritten in part by {op}"


class Aliases:
    """The labelled tensors by the memory that they show."""

    def __init__(self) -> None:
        self._sharing: defaultdict[int, list[TensorWeakRef]] = defaultdict(list)

    def note(self, tensor: Tensor) -> None:
        """Remember which memory `tensor` shows."""
        if tensor.layout is torch.strided:
            sharing = self._sharing[tensor.untyped_storage()._cdata]
            alive = [known for known in sharing if known() is not None]
            if not any(known() is tensor for known in alive):
                alive.append(TensorWeakRef(tensor))
            sharing[:] = alive

    def of(self, tensor: Tensor) -> list[Tensor]:
        """Return the other tensors that show memory of `tensor`."""
        if tensor.layout is not torch.strided:
            return []
        sharing = self._sharing.get(tensor.untyped_storage()._cdata, [])
        known = [reference() for reference in sharing]
        return [other for other in known if other is not None and other is not tensor]


def written(func: OpOverload, arguments: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among the arguments that the operation changes in place."""
    if not func._schema.is_mutable:
        return []
    changed: list[Tensor] = []
    for entry in func._schema.arguments:
        if entry.alias_info is not None and entry.alias_info.is_write:
            value = arguments[entry.name]
            values = value if isinstance(value, (list, tuple)) else [value]
            changed += [item for item in values if isinstance(item, Tensor)]
    return changed


def spread(space: LabelSpace, source: Operand, other: Operand) -> list[Layer]:
    """Return the labels of `other` after a write through `source`, which it overlaps.

    Units that meet join. Units that are new to `other` get labels all over it if the
    rest of it is blank. What cannot be told is frozen.
    """
    if not source.value.numel() or not other.value.numel():
        return other.layers
    if source.value.dtype != other.value.dtype:
        for layer in [*source.layers, *other.layers]:
            space.freeze(layer, _OVERWRITTEN)
        return []
    nowhere = torch.zeros((), dtype=torch.int64)
    inside = _seen(source.value, other.value, nowhere) >= 0
    if not inside.any():
        return other.layers
    lonely = list(other.layers)
    fresh = []
    for layer in source.layers:
        seen = _seen(source.value, other.value, layer)
        varying = _varying(seen)
        partners = [k for k in lonely if space.varying(k) & varying]
        for partner in partners:
            met = partner.expand(seen.shape)[inside]
            space.join(seen[inside], met)
        lonely = [k for k in lonely if not any(k is p for p in partners)]
        if not partners:
            fresh += _extended(space, layer, seen, other)
    if source.layers or source.from_input or not _is_constant(source.value):
        for layer in lonely:
            space.freeze(layer, _OVERWRITTEN)
    return [*other.layers, *fresh]


def _seen(source: Tensor, other: Tensor, layer: Layer) -> Tensor:
    """Return the labels of `source` as `other` shows them, -1 where it shows none."""
    memory = source.untyped_storage().nbytes() // source.element_size()
    line = torch.full((memory,), -1)
    line.as_strided(source.shape, source.stride(), source.storage_offset()).copy_(layer)
    return line.as_strided(other.shape, other.stride(), other.storage_offset())


def _varying(seen: Tensor) -> frozenset[int]:
    """Return the dims along which the labels that are seen differ."""
    least = torch.where(seen < 0, torch.iinfo(seen.dtype).max, seen)
    return frozenset(
        dim
        for dim in range(seen.dim())
        if bool((seen.amax(dim) > least.amin(dim)).any())
    )


def _extended(
    space: LabelSpace, layer: Layer, seen: Tensor, other: Operand
) -> list[Layer]:
    """Return the layer that labels all of `other` as the part that is seen."""
    varying = _varying(seen)
    rest = other.value[seen < 0]
    if not rest.numel():
        return [seen]
    if len(varying) == 1 and not other.from_input and _is_constant(rest):
        (dim,) = varying
        vector = seen.transpose(0, dim).flatten(1).amax(1)
        blank = vector < 0
        if bool(blank.any()):
            vector[blank] = space.copies(int(blank.sum()))
        whole = along(vector, seen.shape, dim)
        if bool((whole == seen)[seen >= 0].all()):
            return [whole]
    space.freeze(layer, "written into a part of a tensor by {op}")
    return []


def _is_constant(value: Tensor) -> bool:
    return bool((value == value.flatten()[:1]).all())
