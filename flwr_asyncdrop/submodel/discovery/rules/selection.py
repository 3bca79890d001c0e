"""Operations that take some positions of a tensor."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Rule
from flwr_asyncdrop.submodel.discovery.labels import UNEQUAL, LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.rules.views import move


def cut(call: Call) -> Labels:
    """Take slices along one dim.

    Slices that cut an axis of units into equal pieces tie the pieces together (the
    gates of an LSTM, a gated linear unit). Unequal ones that together are the whole
    axis (queries, keys and values in one projection) leave each piece on its own:
    where the bounds in the model's code do not fit a narrower tensor, its shape does
    not fit either, and verification finds it. Any other cut freezes the units.
    """
    operand = call.operand("self")
    dim = call.arguments["dim"] % operand.value.dim()
    for layer in operand.layers:
        if dim in call.space.varying(layer):
            _cut_layer(call, layer, dim)
    return _moved_again(call)


def _cut_layer(call: Call, layer: Layer, dim: int) -> None:
    space, source = call.space, call.operand("self").value
    pieces, length = _pieces(call, dim), layer.shape[dim]
    size = _equal_size(pieces, length)
    if (len(pieces) > 1 and size) or call.func.overloadpacket.__name__ == "select":
        _tie_pieces(space, layer, dim, size)
    elif not _is_outermost(space, layer, dim):
        _tie_pieces(space, layer, dim, size or 1)
    elif call.arguments.get("step", 1) != 1:
        space.freeze(layer, UNEQUAL)
    else:
        space.note_cut(source, layer, dim, pieces)


def _is_outermost(space: LabelSpace, layer: Layer, dim: int) -> bool:
    """Whether no dim before `dim` tells units apart, such as the heads they are in."""
    return min(space.varying(layer), default=dim) >= dim


def _pieces(call: Call, dim: int) -> list[tuple[int, int]]:
    """Return start and end of the pieces that the call cuts the dim into."""
    length = call.operand("self").value.shape[dim]
    name = call.func.overloadpacket.__name__
    if name == "select":
        start = call.arguments["index"] % length
        return [(start, start + 1)]
    if name == "unbind":
        return [(start, start + 1) for start in range(length)]
    if name == "slice":
        start = call.arguments["start"] or 0
        start = max(start + length, 0) if start < 0 else start
        return [(start, start + call.outputs[0].shape[dim])]
    ends = list(accumulate(output.shape[dim] for output in call.outputs))
    return list(pairwise([0, *ends]))


def _equal_size(pieces: Sequence[tuple[int, int]], length: int) -> int:
    """Return the size of the pieces of an axis, 0 unless they cut it evenly."""
    sizes = {end - start for start, end in pieces}
    size = sizes.pop() if len(sizes) == 1 else 0
    even = size > 0 and length % size == 0
    return size if even and all(start % size == 0 for start, _ in pieces) else 0


def _moved_again(call: Call) -> Labels:
    """Move the labels as they are after joins, which the operand does not know of."""
    operand = call.operand("self")
    layers = [call.space.canonical(layer) for layer in operand.layers]
    fresh = replace(operand, layers=layers)
    return move(replace(call, known={**call.known, id(operand.value): fresh}))


def _tie_pieces(space: LabelSpace, layer: Layer, dim: int, size: int) -> None:
    if not size:
        space.freeze(layer, UNEQUAL)
        return
    first, *others = torch.split(layer, size, dim)
    for piece in others:
        space.join(first, piece)


def gate(call: Call) -> Labels:
    """Multiply one half with the other's sigmoid: ties the halves together."""
    operand = call.operand("self")
    dim = call.arguments["dim"] % operand.value.dim()
    half = operand.value.shape[dim] // 2
    for layer in operand.layers:
        if dim in call.space.varying(layer):
            _tie_pieces(call.space, layer, dim, half)
    return [[layer.narrow(dim, 0, half) for layer in operand.layers]]


def embed(call: Call) -> Labels:
    """Look rows up: the embedding's features become the output's last dim."""
    shape = call.outputs[0].shape
    layers = []
    for layer in call.operand("weight").layers:
        if 0 in call.space.varying(layer):
            call.space.freeze(layer, "rows that {op} looks up by number")
        else:
            layers.append(along(layer[0], shape, len(shape) - 1))
    return [layers, *call.unlabelled(1)]


def pick(call: Call) -> Labels:
    """Index with tensors: units along an indexed dim freeze, others follow.

    Where units vary along a dim before it too, like the heads of attention, those stay.
    A single position at a fixed place is a piece, as if cut.
    """
    operand = call.operand("self")
    picked = _picked(call)
    others = {name: v for name, v in call.arguments.items() if name != "self"}
    layers: list[Tensor] = []
    for layer in operand.layers:
        met = call.space.varying(layer) & picked.keys()
        outer = min(call.space.varying(layer), default=0)
        if outer not in met:
            layer = call.space.collapse(layer, met).expand(layer.shape)
        elif len(met) == 1 and _is_fixed(call, picked[outer]):
            start = int(picked[outer]) % layer.shape[outer]
            pieces = [(start, start + 1)]
            call.space.note_cut(operand.value, layer, outer, pieces)
        else:
            call.space.freeze(layer, "positions that {op} picks by number")
            continue
        layers.append(call.func(layer, **others))
    return [layers]


def renorm(call: Call) -> Labels:
    """Shorten the rows that are looked up; features that are zero add nothing."""
    table = call.operand("self")
    for layer in table.layers:
        if 0 in call.space.varying(layer) or not table.silent:
            call.space.freeze(layer, "rows that {op} looks up by number")
    return [table.layers]


def _picked(call: Call) -> dict[int, Tensor]:
    """Return the indices by the dim that they pick from."""
    if call.func.overloadpacket is torch.ops.aten.index:
        indices = call.arguments["indices"]
        return {dim: index for dim, index in enumerate(indices) if index is not None}
    rank = call.operand("self").value.dim()
    return {call.arguments["dim"] % rank: call.arguments["index"]}


def _is_fixed(call: Call, index: Tensor) -> bool:
    """Whether an index is one number that does not come from the inputs."""
    return index.numel() == 1 and not call.known[id(index)].from_input


RULES: dict[str, Rule] = {
    "slice select split split_with_sizes unsafe_split unbind": cut,
    "unsafe_split_with_sizes": cut,
    "index index_select": pick,
    "embedding _embedding_bag _embedding_bag_forward_only": embed,
    "embedding_renorm_": renorm,
    "glu": gate,
}
