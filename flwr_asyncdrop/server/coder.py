"""Codes what leaves for the devices."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.fleet.codecs import CodecChoice, Link
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.seeding import derive_seed
from flwr_asyncdrop.server.fingerprint import Fingerprint, fingerprint
from flwr_asyncdrop.server.merging import not_finite, writes
from flwr_asyncdrop.server.order import Part
from flwr_asyncdrop.server.state import RunState, copy_of
from flwr_asyncdrop.submodel import State
from flwr_asyncdrop.submodel.types import shapes_of
from flwr_asyncdrop.wire.codec import Codec

logger = logging.getLogger("flwr.asyncdrop")

T = TypeVar("T")

_MOST_DEVICES = 100  # of which the log says what they get; histories have all


@dataclass(frozen=True)
class Sent:
    """A part of the model as it leaves.

    `records` are the arrays of the message: the model's, then those beside it.
    `bytes_up` is the most that will come back.
    """

    records: Sequence[ArrayRecord]
    coding: wire.Coding
    bytes_down: int
    bytes_up: int


class _PerVersion(Generic[T]):
    """A value that is made of the full model, once a version."""

    def __init__(self) -> None:
        self._made: tuple[int, State, T] | None = None

    def get(self, state: RunState, make: Callable[[], T]) -> T:
        """Return the value of this version."""
        made = self._made
        # The arrays change in place; a run that is resumed has others.
        if made is None or made[0] != state.version or made[1] is not state.arrays:
            # The one before goes first: two are not needed at once.
            self._made = made = None
            made = self._made = state.version, state.arrays, make()
        return made[2]


class _Beside:
    """Copies of records beside the model: one until any of their tensors changes."""

    def __init__(self) -> None:
        # By record and name, and how often they had been written to.
        self._of: dict[tuple[str, str], tuple[Tensor, int]] = {}
        self._copies: Mapping[str, State] = {}

    def copied(self, extra: Mapping[str, State]) -> Mapping[str, State]:
        """Return tensors that nobody changes, which orders share while they can."""
        now = {
            (record, name): (tensor, writes(tensor))
            for record, tensors in extra.items()
            for name, tensor in tensors.items()
        }
        if extra.keys() != self._copies.keys() or not self._are_the_same(now):
            self._of = now
            self._copies = {name: copy_of(each) for name, each in extra.items()}
        return self._copies

    def _are_the_same(self, now: Mapping[tuple[str, str], tuple[Tensor, int]]) -> bool:
        return now.keys() == self._of.keys() and all(
            tensor is self._of[key][0]
            and written == self._of[key][1]
            and not tensor.is_inference()  # which does not know
            for key, (tensor, written) in now.items()
        )


class Coder:
    """Codes parts of the model; the full model once a version.

    Without a `choice` everything travels as it is. Records beside the model always do.
    Messages with the full model of one version share its bytes.
    """

    def __init__(self, choice: CodecChoice | None) -> None:
        self._choice = choice
        self._records = _PerVersion[dict[str, ArrayRecord]]()  # by scheme
        self._snapshot = _PerVersion[State]()
        self._fingerprint = _PerVersion[Fingerprint]()
        self._beside = _Beside()
        self._again: dict[object, tuple[State, ArrayRecord]] = {}
        self._said: dict[int, str] = {}

    def send(self, state: RunState, part: Part, device: int, fleet: Fleet) -> Sent:
        """Return what leaves for a device; RunError if the model has no code."""
        arrays = part.weights
        self._again.clear()
        extra = [wire.to_record(tensors) for tensors in part.extra.values()]
        beside = sum(map(wire.array_bytes, extra))
        if self._choice is None:
            record = self._coded(state, arrays, wire.Coding())
            size = wire.array_bytes(record) + beside
            return Sent([record, *extra], wire.Coding(), size, size)
        dtypes = {name: tensor.dtype for name, tensor in arrays.items()}

        def sizes(candidate: Codec) -> tuple[int, int]:
            down, up = sizes_of(candidate, part.shapes, dtypes)
            return down + beside, up + beside

        link = fleet.devices.link(device, part.compute)
        chosen = self._choice.choose(link, sizes)
        coding = self._coding(state, chosen)
        record = self._coded(state, arrays, coding)
        bytes_down, bytes_up = wire.array_bytes(record) + beside, sizes(chosen)[1]
        if self._choice.varies:
            self._say(device, coding, link, (bytes_down, bytes_up))
        return Sent([record, *extra], coding, bytes_down, bytes_up)

    def usual_bytes(self, part: Part) -> tuple[int, int]:
        """Return the bytes of a part as it usually travels, down and up."""
        down, up = model_sizes(self._choice, part.weights)
        tensors = (each for beside in part.extra.values() for each in beside.values())
        beside = sum(tensor.nbytes for tensor in tensors)
        return down + beside, up + beside

    def send_again(self, part: Part, coding: wire.Coding) -> Sequence[ArrayRecord]:
        """Return the records that have left with a part, once more.

        Those of parts with the same tensors share their bytes.
        """
        weights, extra = part.weights, map(wire.to_record, part.extra.values())
        same = tuple(map(id, weights.values()))
        key = same, coding.down, coding.down_seed
        if key not in self._again:
            self._again[key] = weights, wire.encode_weights(weights, coding)
        return [wire.copy_of_record(self._again[key][1]), *extra]

    def kept(self, state: RunState, part: Part, sent: Sent) -> Part:
        """Return a part, which is sent now, with arrays that stay as they are.

        They are those of its message where this has the numbers as they are. The model
        changes in place, and so may an aggregator change what it sends beside it: if
        not, orders of a version share one copy of it.
        """
        plain = self._choice is None
        if part.extra:
            part = replace(part, extra=self._beside.copied(part.extra))

        def copy() -> State:
            return wire.views_of(sent.records[0]) if plain else copy_of(state.arrays)

        if part.arrays is state.arrays:
            return replace(part, arrays=self._snapshot.get(state, copy))
        return replace(part, arrays=copy()) if plain else part

    def fingerprint(self, state: RunState, arrays: State) -> Fingerprint:
        """Return the fingerprint of what is sent; of the full model once a version."""
        if arrays is not state.arrays:
            return fingerprint(arrays)
        return self._fingerprint.get(state, lambda: fingerprint(arrays))

    def _coding(self, state: RunState, chosen: Codec) -> wire.Coding:
        return wire.Coding(
            "" if chosen.down is None else chosen.down.name,
            "" if chosen.up is None else chosen.up.name,
            # One code of the full model serves all tasks of its version.
            derive_seed(state.seed, "code-down", state.version),
            derive_seed(state.seed, "code-up", state.dispatched),
            chosen.feedback,
        )

    def _coded(
        self, state: RunState, arrays: State, coding: wire.Coding
    ) -> ArrayRecord:
        """Encode arrays; the full model once a version and scheme."""
        if arrays is not state.arrays:
            return _encoded(arrays, coding)
        records = self._records.get(state, dict)
        if coding.down not in records:
            records[coding.down] = _encoded(arrays, coding)
        # A record of its own: a ClientApp in this process may change its message.
        return wire.copy_of_record(records[coding.down])

    def _say(
        self, device: int, coding: wire.Coding, link: Link, sizes: tuple[int, int]
    ) -> None:
        """Log what was chosen for a device, when it is another codec than before."""
        name = coding.name or "none"
        if device not in self._said and len(self._said) == _MOST_DEVICES:
            return
        if self._said.get(device) != name:
            self._said[device] = name
            logger.info(
                "device %d: codec %s, %.3g s of transfers beside %.3g s of training",
                device,
                name,
                link.transfer(sizes),
                link.seconds,
            )


def _encoded(arrays: State, coding: wire.Coding) -> ArrayRecord:
    """Encode what is new; RunError if the model has numbers that have no code."""
    try:
        return wire.encode_weights(arrays, coding)
    except ValueError as error:
        floats = {n: each for n, each in arrays.items() if each.is_floating_point()}
        name = not_finite({n: each.float() for n, each in floats.items()})
        if not name:
            raise
        raise RunError(
            f"the global model holds NaN, infinity or numbers beyond single precision "
            f"in {name!r}, which {coding.down!r} cannot code: its aggregator, or who "
            "drives its rounds, has made it so"
        ) from error


def model_sizes(choice: CodecChoice | None, arrays: State) -> tuple[int, int]:
    """Return the bytes of a model, or a part, as it usually travels, down and up."""
    if choice is None:
        size = sum(tensor.nbytes for tensor in arrays.values())
        return size, size
    dtypes = {name: tensor.dtype for name, tensor in arrays.items()}
    return sizes_of(choice.typical, shapes_of(arrays), dtypes)


def sizes_of(
    codec: Codec,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
) -> tuple[int, int]:
    """Return the most bytes of a task's arrays with a codec, down and up."""
    down, up = (
        wire.coded_bytes(shapes, dtypes, "" if used is None else used.name)
        for used in (codec.down, codec.up)
    )
    return down, up
