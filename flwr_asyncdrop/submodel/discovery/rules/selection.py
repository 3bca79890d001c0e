"""Operations that take some positions of a tensor."""

import math

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.rules.views import move


def cut(call: Call) -> Labels:
    """Take slices along one dim.

    Slices that cut an axis of units into equal pieces tie the pieces together (the
    gates of an LSTM, a gated linear unit); any other cut freezes the units, since
    the bounds in the model's code would not fit a narrower tensor.
    """
    operand = call.operand("self")
    dim = call.arguments["dim"] % operand.value.dim()
    length = operand.value.shape[dim]
    for layer in operand.layers:
        if dim in call.space.varying(layer):
            _tie_pieces(call.space, layer, dim, _piece(call, dim, length))
    return move(call)


def _piece(call: Call, dim: int, length: int) -> int:
    """Return the length of the pieces that the call cuts the dim into, 0 if uneven."""
    name = call.func.overloadpacket.__name__
    if name in ("select", "unbind"):
        return 1
    if name != "slice":
        return math.gcd(*(output.shape[dim] for output in call.outputs))
    size: int = call.outputs[0].shape[dim]
    start = call.arguments["start"] or 0
    start = start + length if start < 0 else start
    fits = size > 0 and length % size == 0 and start % size == 0
    return size if fits and call.arguments["step"] == 1 else 0


def _tie_pieces(space: LabelSpace, layer: Layer, dim: int, size: int) -> None:
    if not size:
        space.freeze(layer, "cut into unequal parts by {op}")
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
    """Index with tensors: units along an indexed dim freeze, others follow."""
    operand = call.operand("self")
    if call.func.overloadpacket is torch.ops.aten.index:
        indices = call.arguments["indices"]
        picked = {dim for dim, index in enumerate(indices) if index is not None}
    else:
        picked = {call.arguments["dim"] % operand.value.dim()}
    others = {name: v for name, v in call.arguments.items() if name != "self"}
    layers: list[Tensor] = []
    for layer in operand.layers:
        if call.space.varying(layer) & picked:
            call.space.freeze(layer, "positions that {op} picks by number")
        else:
            layers.append(call.func(layer, **others))
    return [layers]


def renorm(call: Call) -> Labels:
    """Shorten the rows that are looked up; features that are zero add nothing."""
    table = call.operand("self")
    for layer in table.layers:
        if 0 in call.space.varying(layer) or not table.silent:
            call.space.freeze(layer, "rows that {op} looks up by number")
    return [table.layers]


RULES: dict[str, Rule] = {
    "slice select split split_with_sizes unsafe_split unbind": cut,
    "unsafe_split_with_sizes": cut,
    "index index_select": pick,
    "embedding _embedding_bag _embedding_bag_forward_only": embed,
    "embedding_renorm_": renorm,
    "glu": gate,
}
