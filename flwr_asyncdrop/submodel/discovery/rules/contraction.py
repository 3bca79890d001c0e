"""Operations that sum over units: matrix products and convolutions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.rules.pointwise import is_uniform, unify


def channels(space: LabelSpace, operand: Operand, dim: int) -> list[Tensor]:
    """Return the label vectors of `operand` along `dim`, joined along other dims."""
    return [
        space.vector(layer, dim)
        for layer in operand.layers
        if dim in space.varying(layer)
    ]


def match(space: LabelSpace, *sides: Sequence[Tensor]) -> None:
    """Join axes whose positions correspond; one without labels freezes the others."""
    vectors = [vector for side in sides for vector in side]
    if not all(sides):
        for vector in vectors:
            space.freeze(vector, "meets positions that are always kept in {op}")
        return
    first, *others = sides
    for side in others:
        space.pair(first, side)


def freeze_other_dims(
    space: LabelSpace, operand: Operand, dims: set[int], reason: str
) -> None:
    """Freeze the units of `operand` that vary along any other dim than `dims`."""
    for layer in operand.layers:
        if space.varying(layer) - dims:
            space.freeze(layer, reason)


def product(call: Call) -> Labels:
    """Label a matrix product, or a batch of them."""
    left, right = call.tensors()
    if left.value.layout is not torch.strided:
        return _sparse_product(call, left, right)
    return [_contract(call.space, left, right, call.outputs[0].shape)]


def sparse_product_and_sum(call: Call) -> Labels:
    """Label a product with a sparse matrix, added to something blank."""
    bias, left, right = call.tensors()
    if bias.layers or bias.from_input or bool(bias.value.any()):
        raise ValueError("it adds to what is not zero")
    return _sparse_product(call, left, right)


def _sparse_product(call: Call, left: Operand, right: Operand) -> Labels:
    """Mix the rows of `right`, such as the nodes of a graph; columns follow."""
    for layer in left.layers:
        call.space.freeze(layer, "positions of a sparse matrix in {op}")
    freeze_other_dims(call.space, right, {1}, "rows that {op} mixes")
    shape = call.outputs[0].shape
    return [[along(k, shape, 1) for k in channels(call.space, right, 1)]]


def with_vector(call: Call) -> Labels:
    """Label the product of a matrix, or a vector, with a vector."""
    left, right = call.tensors()
    last = left.value.dim() - 1
    summed_left, kept = _split_layers(call.space, left, last)
    summed_right = [call.space.vector(layer, 0) for layer in right.layers]
    if summed_left and summed_right:
        match(call.space, summed_left, summed_right)
    else:
        _freeze_summed(call.space, summed_left, right, 0)
        _freeze_summed(call.space, summed_right, left, last)
    return [[layer.squeeze(last) for layer in kept]]


def trilinear(call: Call) -> Labels:
    """Multiply three tensors, each repeated along some dims, and sum over others."""
    factors = []
    for operand, added in zip(
        call.operands("i1", "i2", "i3"),
        (call.arguments[name] for name in ("expand1", "expand2", "expand3")),
        strict=True,
    ):
        value, layers = operand.value, operand.layers
        for dim in sorted(added):
            value = value.unsqueeze(dim)
            layers = [layer.unsqueeze(dim) for layer in layers]
        factors.append(Operand(value, layers, operand.from_input))
    sizes = zip(*(factor.value.shape for factor in factors), strict=True)
    whole = [max(along_dim) for along_dim in sizes]
    summed = set(call.arguments["sumdim"])
    layers = []
    for layer in unify(call.space, factors, whole):
        if call.space.varying(layer) <= summed:
            continue
        joined = call.space.collapse(layer, summed)
        for dim in sorted(summed, reverse=True):
            joined = joined.select(dim, 0)
        layers.append(joined.expand(call.outputs[0].shape))
    return [layers]


def distance(call: Call) -> Labels:
    """Measure how far vectors lie apart; features that are zero in both add nothing."""
    left, right = call.tensors()
    last = left.value.dim() - 1
    sides = [channels(call.space, side, last) for side in (left, right)]
    if all(sides) and left.silent and right.silent:
        match(call.space, *sides)
    for side, vectors in zip((left, right), sides, strict=True):
        if not (all(sides) and left.silent and right.silent):
            for vector in vectors:
                call.space.freeze(vector, "reduced over by {op}")
        freeze_other_dims(call.space, side, {last}, "compared by {op}")
    return [[]]


def product_and_sum(call: Call) -> Labels:
    """Label a matrix product to which a bias is added."""
    bias, left, right = call.tensors()
    shape = call.outputs[0].shape
    layers = _contract(call.space, left, right, shape)
    summed = Operand(call.outputs[0], layers, from_input=True)
    return [unify(call.space, [summed, bias], shape)]


def _contract(
    space: LabelSpace, left: Operand, right: Operand, shape: Sequence[int]
) -> list[Layer]:
    """Contract the last dim of `left` with the last but one of `right`."""
    row, column = len(shape) - 1, len(shape) - 2
    summed_left, kept_left = _split_layers(space, left, row)
    summed_right, kept_right = _split_layers(space, right, column)
    if summed_left and summed_right:
        match(space, summed_left, summed_right)
    else:
        _freeze_summed(space, summed_left, right, column)
        _freeze_summed(space, summed_right, left, row)
    factors = [left.narrow(row, kept_left), right.narrow(column, kept_right)]
    return unify(space, factors, shape)


def _split_layers(
    space: LabelSpace, operand: Operand, dim: int
) -> tuple[list[Tensor], list[Layer]]:
    """Split labels into vectors that are summed over and layers that remain."""
    summed, kept = [], []
    for layer in operand.layers:
        varying = space.varying(layer)
        if varying == {dim}:
            summed.append(space.vector(layer, dim))
        elif dim in varying:
            first = space.collapse(layer, [dim])
            sizes = [1 if k == dim else -1 for k in range(layer.dim())]
            kept.append(first.expand(sizes))
        else:
            kept.append(layer.narrow(dim, 0, 1))
    return summed, kept


def _freeze_summed(
    space: LabelSpace, summed: Sequence[Tensor], other: Operand, dim: int
) -> None:
    if not is_uniform(other, dim):
        for vector in summed:
            space.freeze(vector, "meets positions that are always kept in {op}")


def convolution(call: Call) -> Labels:
    """Label a convolution, transposed or grouped; groups of channels drop whole."""
    space = call.space
    source, weight = call.operand("input"), call.operand("weight")
    out_dim, in_dim = (1, 0) if call.arguments["transposed"] else (0, 1)
    inputs = channels(space, source, 1)
    outgoing = channels(space, weight, out_dim)
    incoming = channels(space, weight, in_dim)
    freeze_other_dims(space, source, {1}, "positions that {op} slides over")
    freeze_other_dims(space, weight, {0, 1}, "positions of a kernel in {op}")

    groups = call.arguments["groups"]
    shape = call.outputs[0].shape
    if groups == 1:
        match(space, inputs, incoming)
    else:
        transposed = call.arguments["transposed"]
        full, part = (incoming, outgoing) if transposed else (outgoing, incoming)
        for vector in part:
            space.freeze(vector, "channels within a group of {op}")
        outgoing = _match_groups(space, inputs, full, groups, shape[1])
    for bias in call.operands("bias"):
        match(space, outgoing, channels(space, bias, 0))
    return [[along(vector, shape, 1) for vector in outgoing]]


def _match_groups(
    space: LabelSpace,
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    groups: int,
    outputs: int,
) -> list[Tensor]:
    """Make each group of channels one unit; return the labels of the outputs."""
    ends = []
    for side in (inputs, weights):
        rows = [vector.view(groups, -1) for vector in side]
        for row in rows:
            space.join(row, row[:, :1])
        ends.append([row[:, 0] for row in rows])
    match(space, *ends)
    return [
        end.unsqueeze(1).expand(groups, outputs // groups).reshape(-1)
        for end in ends[1]
    ]


RULES: dict[str, Rule] = {
    "mm bmm": product,
    "addmm baddbmm": product_and_sum,
    "convolution": convolution,
    "_sparse_addmm": sparse_product_and_sum,
    "mv dot vdot": with_vector,
    "_trilinear": trilinear,
    "_cdist_forward": distance,
}
