"""Sequences of several lengths, packed for recurrent layers."""

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Rule
from flwr_asyncdrop.submodel.discovery.labels import along
from flwr_asyncdrop.submodel.discovery.rules.contraction import (
    channels,
    freeze_other_dims,
)

_STEPS = "steps and sequences in {op}"


def pack(call: Call) -> Labels:
    """Put the steps of all sequences below each other; features follow."""
    return _features(call, "input", 2, 1)


def unpack(call: Call) -> Labels:
    """Put steps back where they belong; features follow."""
    return _features(call, "data", 1, 2)


def _features(call: Call, name: str, before: int, after: int) -> Labels:
    source = call.operand(name)
    freeze_other_dims(call.space, source, {before}, _STEPS)
    vectors = channels(call.space, source, before)
    shape = call.outputs[0].shape
    return [[along(k, shape, after) for k in vectors], *call.unlabelled(1)]


RULES: dict[str, Rule] = {
    "_pack_padded_sequence": pack,
    "_pad_packed_sequence": unpack,
}
