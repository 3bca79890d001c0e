"""Small hooks around the loop, so that nobody needs to copy the loop."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from flwr.app import Message, MetricRecord

from flwr_asyncdrop.exceptions import ConfigError, ReplyKind
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import Stateful
from flwr_asyncdrop.wire import Reply

CALLBACK_PART = "callback:"
"""Prefix of the names of callbacks among the parts of a checkpoint."""

LossKind = Literal[
    "dropout", "interrupted", "late", "no-reply", "no-worker", "not-sent"
]
"""Why a task is lost without a reply that was looked at; docs/robustness.md has more.

Only simulated devices drop out.
"""
LOSSES: Final = frozenset(get_args(LossKind))

FailureKind = ReplyKind | LossKind


@dataclass(frozen=True)
class Merged:
    """A reply that has just been merged.

    `staleness` counts the versions of the model between dispatch and merge; `queued`,
    those of them that came while the task waited on its device behind another. The
    update counts for `round`; it is `late` if it came after its deadline. `message` is
    the reply as it came.
    """

    order: Order
    reply: Reply
    staleness: int
    round: int
    late: bool = False
    queued: int = 0
    message: Message | None = None


@dataclass(frozen=True)
class Evaluation:
    """The outcome of one evaluation of the global model.

    `source` is the `Evaluator.source`: ``"server"`` (``evaluate_fn``), ``"clients"``,
    or a user's own. `round`, `update` (number of updates) and `time` (seconds on the
    loop's clock) say which state of the model was evaluated. `metrics` is None if
    nothing was measured.
    """

    source: str
    round: int
    update: int
    time: float
    metrics: MetricRecord | None


class Callback:
    """Base class of the hooks; every hook does nothing unless overridden.

    All hooks run on the loop's thread, in the order of the callbacks, and must not
    change the state. A callback that is `Stateful` is saved in checkpoints.

    Attributes
    ----------
    name : str
        Identifies it in a checkpoint; the name of its class by default.
    files : sequence of Path
        Files that its state refers to: they reach the disk before a checkpoint does.
    """

    name: str = "Callback"
    files: Sequence[Path] = ()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def on_fleet(self, fleet: Fleet) -> None:
        """React to the fleet, before all other hooks; it must not be changed."""

    def on_start(self, state: RunState) -> None:
        """React to the start of the run, before its first task."""

    def on_resume(self, state: RunState) -> None:
        """React to a run that resumes from a checkpoint, in place of `on_start`."""
        self.on_start(state)

    def on_begin(self, state: RunState) -> None:
        """Replace what there is of an earlier run: no callback has refused this one.

        It comes after the `on_start`, or `on_resume`, of all callbacks. Whatever raises
        there leaves the files as they were.
        """

    def on_pause(self, state: RunState) -> None:
        """React to a moment between two events: no event is half handled."""

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """React to a task that was sent."""

    def on_update(self, state: RunState, merged: Merged) -> None:
        """React to a reply that has just been merged."""

    def on_step(self, state: RunState, metrics: Mapping[str, float]) -> None:
        """React to a step of an aggregator that has `Aggregator.metrics` of its own.

        It comes before the `on_update` of the reply with which the step was taken.
        """

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """React to the loss of a task; its slot is free again.

        `kind` is that of a `ReplyError`, or a `LossKind`; `reason` is a sentence.
        """

    def on_evaluation_due(self, state: RunState, source: str, number: int) -> None:
        """React to the request for an evaluation of round `number`."""

    def on_round(self, state: RunState, number: int) -> None:
        """React to the last update of round `number`."""

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """React to the end of an evaluation, maybe some updates later."""

    def on_interrupt(self, state: RunState) -> None:
        """React to a signal that stops the run; `on_end` is not called then."""

    def on_end(self, state: RunState) -> None:
        """React to the end of the run, even by an error or if others raise."""


def stateful_parts(callbacks: Iterable[Callback]) -> dict[str, Stateful]:
    """Return the callbacks with a state, each as a named part of a checkpoint."""
    parts: dict[str, Stateful] = {}
    for callback in callbacks:
        if not isinstance(callback, Stateful):
            continue
        part = f"{CALLBACK_PART}{callback.name}"
        if part in parts:
            raise ConfigError(
                f"a checkpoint cannot tell two callbacks apart that are both named "
                f"{callback.name!r}: give one of them another `name`"
            )
        parts[part] = callback
    return parts
