"""What is done to a run, and in which order."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

__all__ = ["SPOILERS", "TALLY", "Fault", "Plan"]

TALLY = "tally"
"""The array in which a task leaves its mark; see `benchmarks.chaos.client`."""

_MOST_IN_A_ROW = 2


class Fault(StrEnum):
    """A way in which a task, a message or a process goes wrong."""

    # The ClientApp
    RAISES = "client raises"
    EXITS = "client process exits"
    KILLED = "client process is killed"
    LATE = "answer is late"
    HANGS = "client hangs"
    # Its answer
    NAN = "NaN in an array"
    INFINITE = "infinity in an array"
    SHAPE = "array of another shape"
    TEXT = "array of text"
    GARBAGE = "bytes that are no array"
    MISSING = "array is missing"
    EXTRA = "array too many"
    NO_ARRAYS = "no arrays at all"
    NO_EXAMPLES = "no number of examples"
    NEGATIVE = "negative number of examples"
    # The way there and back
    DUPLICATE = "answer comes twice"
    AGAIN = "answer comes again later"
    NOT_SENT = "task is not accepted"
    SWALLOWED = "answer is lost on its way"
    NODE_LEAVES = "node leaves and comes back"
    # The processes around it
    WORKER_KILLED = "worker is killed"
    NODE_KILLED = "SuperNode is killed"
    SUPERLINK_KILLED = "SuperLink is killed"
    SUPERLINK_KILLED_IN_PUSH = "SuperLink is killed during a push"
    SERVER_KILLED = "server process is killed"


@dataclass(frozen=True)
class Plan:
    """The faults of a run, one after the other.

    Attributes
    ----------
    faults : tuple of Fault or None
        What happens to occasion 0, 1, ...; None where nothing does, and to all that
        follow.
    """

    faults: tuple[Fault | None, ...] = ()

    @classmethod
    def draw(cls, counts: Mapping[Fault, int], fine: int, seed: int) -> "Plan":
        """Spread faults at random among `fine` occasions without one.

        A run that has more occasions than `fine` without a fault meets every fault.
        There are never more than two in a row, which could end a small run.

        Parameters
        ----------
        counts : mapping of Fault to int
            How often each is to happen; at most twice as many as `fine` together.
        fine : int
            Occasions without a fault.
        seed : int
            Seed of the order.
        """
        generator = np.random.default_rng(seed)
        faults = [fault for fault, count in counts.items() for _ in range(count)]
        gaps = generator.choice(fine * _MOST_IN_A_ROW, len(faults), replace=False)
        order: list[list[Fault | None]] = [[] for _ in range(fine)]
        for gap, index in zip(gaps, generator.permutation(len(faults)), strict=True):
            order[gap // _MOST_IN_A_ROW].append(faults[index])
        return cls(tuple(fault for group in order for fault in [*group, None]))

    def __getitem__(self, occasion: int) -> Fault | None:
        return self.faults[occasion] if occasion < len(self.faults) else None

    def dumps(self) -> str:
        """Write the plan down."""
        return json.dumps(self.faults)

    @classmethod
    def loads(cls, text: str) -> "Plan":
        """Read what `dumps` wrote."""
        return cls(tuple(name and Fault(name) for name in json.loads(text)))


def _fill(value: float) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        arrays = content.array_records["arrays"]
        values = arrays[TALLY].numpy()
        values[-1] = value
        arrays[TALLY] = Array(values)

    return spoil


def _shape(content: RecordDict) -> None:
    arrays = content.array_records["arrays"]
    arrays[TALLY] = Array(arrays[TALLY].numpy()[:-1])


def _text(content: RecordDict) -> None:
    arrays = content.array_records["arrays"]
    arrays[TALLY] = Array(arrays[TALLY].numpy().astype("U8"))


def _garbage(content: RecordDict) -> None:
    arrays = content.array_records["arrays"]
    whole = arrays[TALLY]
    arrays[TALLY] = Array(whole.dtype, whole.shape, whole.stype, b"\x93NUMPY garbage")


def _missing(content: RecordDict) -> None:
    del content.array_records["arrays"][TALLY]


def _extra(content: RecordDict) -> None:
    content.array_records["arrays"]["stowaway"] = Array(np.zeros(1, np.float32))


def _no_arrays(content: RecordDict) -> None:
    content["arrays"] = ArrayRecord()


def _no_examples(content: RecordDict) -> None:
    content["metrics"] = MetricRecord({})


def _negative(content: RecordDict) -> None:
    content.metric_records["metrics"]["num-examples"] = -1


SPOILERS: Mapping[Fault, Callable[[RecordDict], None]] = MappingProxyType(
    {
        Fault.NAN: _fill(float("nan")),
        Fault.INFINITE: _fill(float("inf")),
        Fault.SHAPE: _shape,
        Fault.TEXT: _text,
        Fault.GARBAGE: _garbage,
        Fault.MISSING: _missing,
        Fault.EXTRA: _extra,
        Fault.NO_ARRAYS: _no_arrays,
        Fault.NO_EXAMPLES: _no_examples,
        Fault.NEGATIVE: _negative,
    }
)
"""How an answer is spoiled, in place."""
