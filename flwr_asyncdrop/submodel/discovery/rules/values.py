"""What is known of a tensor's values beyond its labels, passed on by operations.

Zeros: its values are zero where units are not there. Numbers: its values are the
numbers of units. Choices: so many units have been taken out of these scores before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer

TOLD_APART = "told apart by number in {op}"

MOVES = (
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose"),
    *("t", "squeeze", "unsqueeze", "expand", "clone", "detach", "alias", "contiguous"),
    *("lift_fresh", "_to_copy"),
)
_KEEP_ZEROS = (*MOVES, "div", "div_", "sum")
_KEEP_NUMBERS = (
    *(*MOVES, "select", "slice", "split", "split_with_sizes", "unbind"),
    *("repeat", "flip", "roll", "cat", "stack"),
)
_TAKE_NUMBERS = (
    *("index", "index_select", "embedding", "gather", "eq"),
    *("scatter", "scatter_", "scatter_add", "scatter_add_"),
)
_IGNORE_VALUES = (
    *("new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like"),
    *("empty_like", "full_like", "sym_size"),
)


def pass_on(call: Call) -> None:
    """Carry over to the outputs what is known of the values beyond the labels."""
    name = call.func.overloadpacket.__name__
    _pass_zeros_on(call, name)
    if torch.Tag.pointwise in call.func.tags or name in MOVES:
        _pass_taken_on(call)
    if name not in (*_TAKE_NUMBERS, *_IGNORE_VALUES):  # its rule has seen to them
        _pass_numbers_on(call, name)


def _pass_taken_on(call: Call) -> None:
    """Remember how many choices were taken out already, position by position."""
    if not isinstance(call.outputs[0], Tensor):
        return
    for operand in call.tensors():
        taken = call.space.taken.get(operand.value, 0)
        known = call.space.taken.get(call.outputs[0], 0)
        if taken > known and operand.value.shape == call.outputs[0].shape:
            call.space.taken[call.outputs[0]] = taken


def _pass_zeros_on(call: Call, name: str) -> None:
    """Remember zeros: those of one factor, and those that were only moved."""
    factors = list(call.tensors())
    if name not in ("mul", "mul_"):
        factors = factors[:1] if name in _KEEP_ZEROS else []
    units = [v for k in factors for v in call.space.vanishing_in(k.value)]
    if units:
        note_zeros(call, units)


def note_zeros(call: Call, units: list[Layer]) -> None:
    """Remember that the first output is zero where these units are not there."""
    call.space.note_vanishing(call.outputs[0], _version_after(call), units)


def _version_after(call: Call) -> int:
    """Return the version of the output's memory once the call is over."""
    source = next(call.tensors()).value
    memory = call.outputs[0].untyped_storage()._cdata
    if memory != source.untyped_storage()._cdata:
        return 0
    return source._version + call.func._schema.is_mutable


def _pass_numbers_on(call: Call, name: str) -> None:
    """Let the outputs number units, where they are numbers that were given.

    Units freeze if their numbers are used for anything else than picking.
    """
    given = list(call.tensors())
    vectors = [operand.numbers for operand in given if operand.numbers is not None]
    if not vectors:
        return
    same = len(vectors) == len(given) and all_same(call.space, vectors)
    if name not in _KEEP_NUMBERS or not same:
        for vector in vectors:
            call.space.freeze(vector, TOLD_APART)
        return
    for output in call.outputs:
        if isinstance(output, Tensor):
            call.space.numbers[output] = vectors[0]


def all_same(space: LabelSpace, vectors: Sequence[Layer]) -> bool:
    """Return whether these are vectors of the same units."""
    first, *others = [space.canonical(vector) for vector in vectors]
    return all(torch.equal(first, other) for other in others)
