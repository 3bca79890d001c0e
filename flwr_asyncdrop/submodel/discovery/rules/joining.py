"""Operations that put tensors side by side, or add a margin."""

import torch

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.rules.pointwise import is_uniform, unify


def concatenate(call: Call) -> Labels:
    """Put the units along the dim side by side, join those along other dims.

    A constant beside activations gets units of its own, which those of later calls may
    join: a cell that is written by hand may start from zeros.
    """
    shape = call.outputs[0].shape
    dim = call.arguments["dim"] % len(shape)
    parts = [part for part in call.tensors() if part.value.numel()]
    for part in parts:
        _settle_inner(call.space, part, dim)
    beside = any(part.layers or part.from_input for part in parts)
    labels = [_labels_along(call.space, part, dim, beside=beside) for part in parts]
    others = [
        part.narrow(dim, [k.narrow(dim, 0, 1) for k in _across(call.space, part, dim)])
        for part in parts
    ]
    first = [1 if k == dim else size for k, size in enumerate(shape)]
    joined = unify(call.space, others, first)
    call.space.note_assembly(torch.cat(labels))
    side_by_side = along(torch.cat(labels), shape, dim)
    return [[side_by_side, *(layer.expand(shape) for layer in joined)]]


def _settle_inner(space: LabelSpace, part: Operand, dim: int) -> None:
    """Join units along the dim that vary along one before it too, like heads."""
    for layer in part.layers:
        varying = space.varying(layer)
        if dim in varying and min(varying) < dim:
            space.collapse(layer, [dim])


def _labels_along(
    space: LabelSpace, part: Operand, dim: int, *, beside: bool
) -> torch.Tensor:
    """Return the unit of each position along `dim`, 0 where there is none."""
    found = [layer for layer in part.layers if dim in space.varying(layer)]
    for layer in found[1:]:
        space.freeze(layer, "side by side with other units in {op}")
    if found:
        return space.vector(found[0], dim)
    size = part.value.shape[dim]
    if beside and size > 1 and is_uniform(part, dim):
        return space.copies(size)
    return torch.zeros(size, dtype=torch.int64)


def _across(space: LabelSpace, part: Operand, dim: int) -> list[Layer]:
    return [
        space.canonical(layer)
        for layer in part.layers
        if dim not in space.varying(layer)
    ]


def stack(call: Call) -> Labels:
    """Join the labels of tensors that are stacked along a new dim."""
    parts = list(call.tensors())
    shape = call.outputs[0].shape
    dim = call.arguments["dim"] % len(shape)
    joined = unify(call.space, parts, parts[0].value.shape)
    return [[layer.unsqueeze(dim).expand(shape) for layer in joined]]


def pad(call: Call) -> Labels:
    """Add margins, whose positions along an axis of units are always kept.

    Where units can be told apart along a dim without margins, they need no others.
    """
    shape = call.outputs[0].shape
    margins = call.arguments["pad"]
    dims = [len(shape) - 1 - k // 2 for k in range(len(margins))]
    padded = {dim for dim, margin in zip(dims, margins, strict=True) if margin}
    layers = []
    for layer in call.operand("self").layers:
        varying = call.space.varying(layer)
        axis = varying if varying <= padded else frozenset()
        joined = call.space.collapse(layer, padded - axis)
        own = [m if dim in axis else 0 for dim, m in zip(dims, margins, strict=True)]
        layers.append(torch.constant_pad_nd(joined, own, 0).expand(shape))
    return [layers]


RULES: dict[str, Rule] = {
    "cat": concatenate,
    "stack": stack,
    "constant_pad_nd": pad,
}
