"""Operations that normalise: by channel, by group of channels, or by position."""

from collections.abc import Iterable

from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.rules.contraction import (
    channels,
    freeze_other_dims,
    match,
)
from flwr_asyncdrop.submodel.discovery.rules.pointwise import unify

_TOGETHER = "normalised together by {op}: the statistics would change"


def batch_norm(call: Call) -> Labels:
    """Normalise each channel on its own: a unit takes its statistics along."""
    source = call.operand("input")
    inputs = channels(call.space, source, 1)
    return _by_channel(call, inputs, "weight bias running_mean running_var")


def group_norm(call: Call) -> Labels:
    """Normalise groups of channels: they drop whole, and a single one never does."""
    groups = call.arguments["group"]
    inputs = channels(call.space, call.operand("input"), 1)
    for vector in inputs:
        if groups == 1:
            _normalise(call.space, vector)
        else:
            rows = vector.view(groups, -1)
            call.space.join(rows, rows[:, :1])
    return _by_channel(call, inputs, "weight bias")


def _by_channel(call: Call, inputs: list[Tensor], names: str) -> Labels:
    freeze_other_dims(call.space, call.operand("input"), {1}, _TOGETHER)
    tensors = call.operands(*names.split())
    match(call.space, inputs, *(channels(call.space, t, 0) for t in tensors))
    layers = [along(vector, call.outputs[0].shape, 1) for vector in inputs]
    return [layers, *call.unlabelled(1)]


def layer_norm(call: Call) -> Labels:
    """Normalise over the last dims, whose units stay whole unless they are a stream.

    Weight and bias lie along the same dims and are applied position by position.
    """
    source = call.operand("input")
    shape = source.value.shape
    first = len(shape) - len(call.arguments["normalized_shape"])
    tensors = call.operands("weight", "bias")
    for tensor in tensors:
        _normalise_dims(call.space, tensor, range(tensor.value.dim()))
    _normalise_dims(call.space, source, range(first, len(shape)))
    layers = unify(call.space, [source, *tensors], shape)
    return [layers, *call.unlabelled(1)]


def weight_norm(call: Call) -> Labels:
    """Give each row a length: rows are units, and columns can go from all of them."""
    direction, length = call.operands("v", "g")
    shape = call.outputs[0].shape
    dim = call.arguments["dim"] % len(shape)
    rows = channels(call.space, direction, dim)
    match(call.space, rows, channels(call.space, length, dim))
    freeze_other_dims(call.space, length, {dim}, _TOGETHER)
    others = [k for k in direction.layers if dim not in call.space.varying(k)]
    return [[*(along(k, shape, dim) for k in rows), *others], *call.unlabelled(1)]


def _normalise_dims(space: LabelSpace, operand: Operand, dims: Iterable[int]) -> None:
    for layer in operand.layers:
        if space.varying(layer) & set(dims):
            _normalise(space, layer)


def _normalise(space: LabelSpace, layer: Layer) -> None:
    """Mark as a stream's what is normalised together, or freeze it."""
    if space.streams:
        space.normalise(layer)
    else:
        space.freeze(layer, _TOGETHER)


RULES: dict[str, Rule] = {
    "native_batch_norm cudnn_batch_norm": batch_norm,
    "_native_batch_norm_legit _native_batch_norm_legit_no_training": batch_norm,
    "_batch_norm_with_update _batch_norm_no_update": batch_norm,
    "native_group_norm": group_norm,
    "native_layer_norm": layer_norm,
    "_weight_norm_interface": weight_norm,
}
