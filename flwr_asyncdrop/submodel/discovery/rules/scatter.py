"""Operations that write or add values at positions given by an index."""

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer
from flwr_asyncdrop.submodel.discovery.rules.pointwise import unify

_ADDRESSED = "positions that {op} addresses by number"


def _across(space: LabelSpace, operand: Operand, dim: int) -> Operand:
    """Return the first position along `dim`; units that vary along it freeze."""
    layers = []
    for layer in operand.layers:
        if dim in space.varying(layer):
            space.freeze(layer, _ADDRESSED)
        else:
            layers.append(layer.narrow(dim, 0, 1))
    return operand.narrow(dim, layers)


def scatter(call: Call) -> Labels:
    """Write along one dim, with an index for each element."""
    target = call.operand("self")
    dim = call.arguments["dim"] % target.value.dim()
    operands = [target, *call.operands("src", "index")]
    return [_joined(call, operands, dim, call.outputs[0])]


def index_add(call: Call) -> Labels:
    """Write along one dim, with an index for each slice."""
    target = call.operand("self")
    dim = call.arguments["dim"] % target.value.dim()
    for index in call.operands("index"):
        for layer in index.layers:
            call.space.freeze(layer, "used as an index by {op}")
    operands = [target, *call.operands("source")]
    return [_joined(call, operands, dim, call.outputs[0])]


def gather(call: Call) -> Labels:
    """Read along one dim, with an index for each element."""
    source = call.operand("self")
    dim = call.arguments["dim"] % source.value.dim()
    operands = [source, *call.operands("index")]
    return [_joined(call, operands, dim, call.outputs[0])]


def _joined(
    call: Call, operands: list[Operand], dim: int, output: Tensor
) -> list[Layer]:
    first = [1 if k == dim else size for k, size in enumerate(output.shape)]
    if any(
        size != first[k]
        for operand in operands
        for k, size in enumerate(operand.value.shape)
        if k != dim
    ):
        raise ValueError("its tensors differ in size")
    narrowed = [_across(call.space, operand, dim) for operand in operands]
    layers = unify(call.space, narrowed, first)
    return [layer.expand(output.shape) for layer in layers]


def index_put(call: Call) -> Labels:
    """Write values at indexed positions: units along other dims follow."""
    space, target = call.space, call.operand("self")
    (values,) = call.operands("values")
    indices = call.arguments["indices"]
    if _is_mask(indices, target.value) and values.value.numel() == 1:
        mask = call.known[id(indices[0])]
        return [unify(space, [target, mask], target.value.shape)]
    first, count, rank = _place(indices)
    picked = set(range(first, first + count))
    own = []
    for layer in target.layers:
        if space.varying(layer) & picked:
            space.freeze(layer, _ADDRESSED)
        else:
            own.append(_shortened(layer, first, count))
    shape = target.value.shape
    outer = [*shape[:first], *shape[first + count :]]
    sizes = [*shape[:first], *[1] * rank, *shape[first + count :]]
    written = _first_along(space, values, first, rank, sizes)
    operands = [Operand(_shortened(target.value, first, count), own), written]
    for index in indices:
        for layer in call.known[id(index)].layers if index is not None else []:
            space.freeze(layer, "used as an index by {op}")
    joined = unify(space, operands, outer)
    return [[_lengthened(layer, first, count).expand(shape) for layer in joined]]


def _is_mask(indices: list[Tensor | None], target: Tensor) -> bool:
    mask = indices[0]
    return (
        len(indices) == 1
        and mask is not None
        and mask.dtype == torch.bool
        and mask.shape == target.shape
    )


def _place(indices: list[Tensor | None]) -> tuple[int, int, int]:
    """Return the first indexed dim, how many there are, and the rank of the index."""
    given = [index for index in indices if index is not None]
    first = next(k for k, index in enumerate(indices) if index is not None)
    if any(index is None for index in indices[first : first + len(given)]):
        raise ValueError("its indexed dims are apart")
    masks = [index for index in given if index.dtype in (torch.bool, torch.uint8)]
    if masks and len(given) > 1:
        raise ValueError("it takes masks and numbers")
    if masks:
        return first, masks[0].dim(), 1
    return first, len(given), max(index.dim() for index in given)


def _shortened(tensor: Tensor, first: int, count: int) -> Tensor:
    """Return the first position along each of `count` dims, without these dims."""
    for _ in range(count):
        tensor = tensor.select(first, 0)
    return tensor


def _lengthened(tensor: Tensor, first: int, count: int) -> Tensor:
    for _ in range(count):
        tensor = tensor.unsqueeze(first)
    return tensor


def _first_along(
    space: LabelSpace, values: Operand, first: int, rank: int, sizes: list[int]
) -> Operand:
    """Return what is written at one index; units that vary along the index freeze."""
    missing = len(sizes) - values.value.dim()
    value = _lengthened(values.value, 0, missing)
    if not value.numel():
        raise ValueError("it writes nothing")
    index = set(range(first, first + rank))
    layers = []
    for layer in values.layers:
        wide = _lengthened(layer, 0, missing)
        if space.varying(wide) & index:
            space.freeze(layer, _ADDRESSED)
        else:
            layers.append(_shortened(wide, first, rank))
    return Operand(_shortened(value, first, rank), layers, values.from_input)


RULES: dict[str, Rule] = {
    "scatter scatter_ scatter_add scatter_add_": scatter,
    "scatter_reduce scatter_reduce_": scatter,
    "index_add index_add_ index_copy index_copy_ index_reduce index_reduce_": index_add,
    "index_fill index_fill_": index_add,
    "index_put index_put_ _index_put_impl_": index_put,
    "gather": gather,
}
