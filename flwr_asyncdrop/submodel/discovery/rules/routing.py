"""Operations that choose among units by number, as the router of experts does.

Units that compete in a softmax or for the largest value may go: one that cannot be
chosen changes nothing for the others. The indices of the chosen ones *number* units,
and may pick positions along an axis of the same units, but nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import (
    Call,
    Extension,
    Labels,
    Operand,
    Rule,
)
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.rules.pointwise import elementwise, unify
from flwr_asyncdrop.submodel.discovery.rules.values import (
    TOLD_APART,
    all_same,
    note_zeros,
)


def compete(call: Call, base: Rule | None = None) -> Labels:
    """Softmax: what cannot be chosen has no part in it."""
    source = call.operand("self")
    dim = call.arguments["dim"] % source.value.dim()
    reason = "depend on each other in {op}"
    units, _ = _competing(call.space, source, {dim}, 1, reason)
    if units is not None and "log" not in call.func.overloadpacket.__name__:
        note_zeros(call, [units])
    return [source.layers for _ in call.outputs]


def add_up(call: Call, base: Rule) -> Labels:
    """Sum: those that cannot be chosen add nothing where they are zero."""
    source = call.operand("self")
    dims = call.arguments.get("dim")
    rank = source.value.dim()
    listed: Iterable[int] = range(rank) if dims is None or dims == [] else dims
    summed = {dim % max(rank, 1) for dim in listed}
    absent = call.space.vanishing_in(source.value)
    rest = [k for k in source.layers if not _vanishes(call.space, k, summed, absent)]
    return base(_with_layers(call, "self", rest))


def _vanishes(
    space: LabelSpace, layer: Layer, dims: set[int], absent: Sequence[Layer]
) -> bool:
    varying = space.varying(layer)
    if len(varying) != 1 or not varying <= dims:
        return False
    units = space.vector(layer, *varying)
    return any(all_same(space, [units, vector]) for vector in absent)


def _competing(
    space: LabelSpace, source: Operand, dims: set[int], least: int, reason: str
) -> tuple[Tensor | None, list[Layer]]:
    """Let the units along `dims` compete; return them and the layers of others.

    Units that vary along another dim too, like experts in groups, freeze.
    """
    found: list[Tensor] = []
    others: list[Layer] = []
    for layer in source.layers:
        varying = space.varying(layer)
        if not varying & dims:
            others.append(layer)
        elif len(varying) == 1:
            vector = space.vector(layer, *varying)
            taken = space.taken.get(source.value, 0)
            space.compete(vector, least + taken, reason)
            found.append(vector)
        else:
            space.freeze(layer, reason)
    for vector in found[1:]:
        space.join(found[0], vector)
    return (found[0] if found else None), others


def take_top(call: Call, base: Rule | None = None) -> Labels:
    """Choose the k largest: as many units must be there."""
    source = call.operand("self")
    shape = call.outputs[0].shape
    dim = call.arguments["dim"] % max(source.value.dim(), 1)
    reason = "depend on each other in {op}"
    if not call.arguments["largest"]:
        _freeze_along(call.space, source, dim, reason)
    least = call.arguments["k"]
    units, others = _competing(call.space, source, {dim}, least, reason)
    if units is not None:
        call.space.numbers[call.outputs[1]] = units
    layers = [layer.narrow(dim, 0, 1).expand(shape) for layer in others]
    return [layers, layers]


def _freeze_along(space: LabelSpace, source: Operand, dim: int, reason: str) -> None:
    for layer in source.layers:
        if dim in space.varying(layer):
            space.freeze(layer, reason)


def take_largest(call: Call, base: Rule | None = None) -> Labels:
    """Choose the largest along dims."""
    source = call.operand("self")
    dims = call.arguments.get("dim")
    if base is None or dims is None or dims == []:
        return _by_rule(call, base)
    rank = max(source.value.dim(), 1)
    reduced = {dim % rank for dim in ([dims] if isinstance(dims, int) else dims)}
    reason = "reduced over by {op}: the result would change"
    alone = [k for k in source.layers if len(call.space.varying(k)) == 1]
    rest = [k for k in source.layers if len(call.space.varying(k)) != 1]
    lone = replace(source, layers=alone)
    units, others = _competing(call.space, lone, reduced, 1, reason)
    if units is not None and call.func.overloadpacket is not torch.ops.aten.amax:
        call.space.numbers[call.outputs[-1]] = units
    return base(_with_layers(call, "self", [*others, *rest]))


def pick(call: Call, base: Rule | None = None) -> Labels:
    """Index with tensors, of which some number the units along the indexed dim."""
    source = call.operand(_picked_from(call))
    indices = _indices(call)
    for index in indices.values():
        for layer in index.layers:
            call.space.freeze(layer, "where {op} picks positions differs between them")
    numbered = {dim: k.numbers for dim, k in indices.items() if k.numbers is not None}
    layers = _chosen(call.space, source, numbered)
    if numbered and not source.from_input:
        call.space.picked[call.outputs[0]] = True
    return _by_rule(_with_layers(call, _picked_from(call), layers), base)


def _picked_from(call: Call) -> str:
    return "weight" if "weight" in call.arguments else "self"


def _indices(call: Call) -> dict[int, Operand]:
    """Return by dim what picks positions along it."""
    if call.func.overloadpacket is torch.ops.aten.index:
        given = enumerate(call.arguments["indices"])
        return {dim: call.known[id(index)] for dim, index in given if index is not None}
    if call.func.overloadpacket is torch.ops.aten.embedding:
        return {0: call.operand("indices")}
    rank = max(call.operand("self").value.dim(), 1)
    return {call.arguments["dim"] % rank: call.operand("index")}


def _chosen(
    space: LabelSpace, source: Operand, numbered: Mapping[int, Layer]
) -> list[Layer]:
    """Join the units along dims with those that number them; return other layers."""
    others = source.layers
    for dim, units in numbered.items():
        mine = [layer for layer in others if dim in space.varying(layer)]
        others = [layer for layer in others if dim not in space.varying(layer)]
        if not mine:
            space.freeze(units, "number positions that are always kept in {op}")
        for layer in mine:
            if space.varying(layer) == {dim} and layer.shape[dim] == len(units):
                space.choose(space.vector(layer, dim), units)
            else:
                space.freeze(layer, TOLD_APART)
                space.freeze(units, TOLD_APART)
    return others


def add(call: Call, base: Rule) -> Labels:
    """Add a bias that was picked by number: no branches meet there."""
    picked = call.space.picked
    values = [operand.value for operand in call.tensors()]
    bases = [value._base for value in values if value._base is not None]
    if any(value in picked for value in [*values, *bases]):
        return elementwise(call)
    return base(call)


def gather(call: Call, base: Rule | None = None) -> Labels:
    """Gather along a dim whose units the index numbers."""
    source, index = call.operand("self"), call.operand("index")
    if index.numbers is None:
        return _by_rule(call, base)
    dim = call.arguments["dim"] % source.value.dim()
    layers = _chosen(call.space, source, {dim: index.numbers})
    return [_across(call, dim, [replace(source, layers=layers), index])]


def scatter(call: Call, base: Rule | None = None) -> Labels:
    """Write at positions along a dim whose units the index numbers."""
    target, index = call.operand("self"), call.operand("index")
    if index.numbers is None:
        return _by_rule(call, base)
    units = index.numbers
    rank = target.value.dim()
    dim = call.arguments["dim"] % rank
    if target.value._is_view():
        raise ValueError("it writes on a part of another tensor")
    if any(dim in call.space.varying(layer) for layer in target.layers):
        others = _chosen(call.space, target, {dim: units})
        # Who was taken may be taken out: a further choice needs as many more.
        taken = call.space.taken.get(target.value, 0) + index.value.shape[dim]
        call.space.taken[call.outputs[0]] = taken
    elif _is_blank(target, index, dim) and target.value.shape[dim] == len(units):
        others = target.layers
        call.space.choose(units, units)
        if not _unwritten(target, index, dim).any():
            note_zeros(call, [units])
    else:
        raise ValueError("it writes on positions that are always kept")
    parts = [replace(target, layers=others), index, *call.operands("src")]
    chosen = along(units, call.outputs[0].shape, dim)
    return [[chosen, *_across(call, dim, parts)]]


def _is_blank(target: Operand, index: Operand, dim: int) -> bool:
    """Whether `target` is constant but for what has just been written on it."""
    values = _unwritten(target, index, dim)
    return not target.from_input and bool((values == values[:1]).all())


def _unwritten(target: Operand, index: Operand, dim: int) -> Tensor:
    written = torch.zeros(target.value.shape, dtype=torch.bool)
    return target.value[~written.scatter(dim, index.value, True)]


def _across(call: Call, dim: int, parts: Sequence[Operand]) -> list[Layer]:
    """Join the labels of `parts` along other dims than `dim`."""
    shape = call.outputs[0].shape
    first = [1 if k == dim else size for k, size in enumerate(shape)]
    slices = []
    for part in parts:
        if any(dim in call.space.varying(layer) for layer in part.layers):
            raise ValueError("units meet chosen ones")
        layers = [layer.narrow(dim, 0, 1) for layer in part.layers]
        slices.append(part.narrow(dim, layers))
    return [layer.expand(shape) for layer in unify(call.space, slices, first)]


def compare(call: Call, base: Rule | None = None) -> Labels:
    """Compare numbers with all numbers in turn: positions become units.

    Two numbers of the same units may be compared too.
    """
    operands = list(call.tensors())
    numbers = [k.numbers for k in operands if k.numbers is not None]
    if len(numbers) == 2 and all_same(call.space, numbers):
        return (base or elementwise)(call)
    others = [operand for operand in operands if operand.numbers is None]
    if len(numbers) != 1 or len(others) != 1 or not _counts_up(others[0], numbers[0]):
        for units in numbers:
            call.space.freeze(units, TOLD_APART)
        return (base or elementwise)(call)
    units, shape = numbers[0], call.outputs[0].shape
    lengths = list(others[0].value.shape)
    dim = lengths.index(len(units)) + len(shape) - len(lengths)
    call.space.choose(units, units)
    note_zeros(call, [units])
    rest = [operand for operand in operands if operand.numbers is not None]
    return [[along(units, shape, dim), *unify(call.space, rest, shape)]]


def _counts_up(operand: Operand, units: Layer) -> bool:
    """Whether a constant has the number of every unit, in turn."""
    known = operand.value.flatten().tolist()
    constant = not operand.from_input and not operand.layers
    return constant and len(units) > 1 and known == list(range(len(units)))


def _with_layers(call: Call, name: str, layers: list[Layer]) -> Call:
    """Return the call with other labels for one of its arguments."""
    operand = replace(call.operand(name), layers=layers)
    return replace(call, known={**call.known, id(call.arguments[name]): operand})


def _by_rule(call: Call, rule: Rule | None) -> Labels:
    if rule is None:
        raise ValueError("its indices do not number units")
    return rule(call)


EXTENSIONS: dict[str, Extension] = {
    "_softmax _safe_softmax _log_softmax": compete,
    "sum": add_up,
    "topk": take_top,
    "max argmax amax": take_largest,
    "index index_select embedding": pick,
    "add add_": add,
    "gather": gather,
    "scatter scatter_ scatter_add scatter_add_": scatter,
    "eq": compare,
}
