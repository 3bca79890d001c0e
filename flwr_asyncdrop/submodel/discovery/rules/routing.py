"""Operations that choose among units by number, as the router of experts does.

Units that compete in a softmax or for the largest value may go: one that cannot be
chosen changes nothing for the others. The indices of the chosen ones *number* units,
and may pick positions along an axis of the same units, but nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.rules.pointwise import elementwise, unify

Extension: TypeAlias = Callable[..., Labels]
"""A rule that leaves what it does not know to the rule `base`, if there is one."""

_TOLD_APART = "told apart by number in {op}"

_KEEP_NUMBERS = frozenset(
    "view _unsafe_view reshape _reshape_alias permute transpose t squeeze unsqueeze "
    "select slice split split_with_sizes unbind expand clone detach alias contiguous "
    "lift_fresh _to_copy repeat flip roll cat stack".split()
)
_TAKE_NUMBERS = frozenset(
    "index index_select embedding gather scatter scatter_ scatter_add scatter_add_ "
    "eq".split()
)
_IGNORE_VALUES = frozenset(
    "new_zeros new_ones new_full new_empty zeros_like ones_like empty_like full_like "
    "sym_size".split()
)


def pass_numbers_on(call: Call) -> None:
    """Let the outputs number units, where they are numbers that were given.

    Units freeze if their numbers are used for anything else than picking.
    """
    name = call.func.overloadpacket.__name__
    if name in _TAKE_NUMBERS or name in _IGNORE_VALUES:
        return  # a rule below has seen to them
    given = list(call.tensors())
    vectors = [operand.numbers for operand in given if operand.numbers is not None]
    same = len(vectors) == len(given) and _all_same(call.space, vectors)
    if name not in _KEEP_NUMBERS or not same:
        for vector in vectors:
            call.space.freeze(vector, _TOLD_APART)
        return
    for output in call.outputs:
        if isinstance(output, Tensor):
            call.space.numbers[output] = vectors[0]


def _all_same(space: LabelSpace, vectors: Sequence[Layer]) -> bool:
    first, *others = [space.canonical(vector) for vector in vectors]
    return all(torch.equal(first, other) for other in others)


def compete(call: Call, base: Rule | None = None) -> Labels:
    """Softmax: what cannot be chosen has no part in it."""
    source = call.operand("self")
    dim = call.arguments["dim"] % source.value.dim()
    _competing(call.space, source, {dim}, 1, "depend on each other in {op}")
    return [source.layers for _ in call.outputs]


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
            space.compete(vector, least, reason)
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
                space.freeze(layer, _TOLD_APART)
                space.freeze(units, _TOLD_APART)
    return others


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
        # Who was taken may be taken out: as many more must be there.
        taken = index.value.shape[dim]
        least = int(call.space.units.least(units.numpy()).max())
        call.space.compete(units, least + taken, _TOLD_APART)
    elif _is_blank(target, index, dim) and target.value.shape[dim] == len(units):
        others = target.layers
        call.space.choose(units, units)
    else:
        raise ValueError("it writes on positions that are always kept")
    parts = [replace(target, layers=others), index, *call.operands("src")]
    chosen = along(units, call.outputs[0].shape, dim)
    return [[chosen, *_across(call, dim, parts)]]


def _is_blank(target: Operand, index: Operand, dim: int) -> bool:
    """Whether `target` was constant along `dim` before it was written on."""
    written = torch.zeros(target.value.shape, dtype=torch.bool)
    written = written.scatter(dim, index.value, True)
    if target.from_input or bool(written.all()):
        return not target.from_input
    values = target.value[~written]
    return bool((values == values[0]).all())


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
    """Compare numbers with all numbers in turn: positions become units."""
    operands = list(call.tensors())
    numbered = [operand for operand in operands if operand.numbers is not None]
    if not numbered:
        return (base or elementwise)(call)
    units = numbered[0].numbers
    others = [operand for operand in operands if operand.numbers is None]
    if units is None or len(numbered) != 1 or len(others) != 1:
        raise ValueError(_TOLD_APART.partition(" in")[0])
    shape = call.outputs[0].shape
    value = others[0].value
    dims = [dim for dim, size in enumerate(value.shape) if size > 1]
    counted = value.flatten().tolist() == list(range(len(units)))
    if len(dims) != 1 or not counted or others[0].from_input or others[0].layers:
        raise ValueError(_TOLD_APART.partition(" in")[0])
    dim = dims[0] + len(shape) - value.dim()
    call.space.choose(units, units)
    return [[along(units, shape, dim), *unify(call.space, numbered, shape)]]


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
    "topk": take_top,
    "max argmax amax": take_largest,
    "index index_select embedding": pick,
    "gather": gather,
    "scatter scatter_ scatter_add scatter_add_": scatter,
    "eq": compare,
}
