"""Small hooks around the loop, so that nobody needs to copy the loop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import MetricRecord

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import Stateful
from flwr_asyncdrop.wire import Reply

CALLBACK_PART = "callback:"
"""What the names of callbacks begin with among the parts of a checkpoint."""


@dataclass(frozen=True)
class Merged:
    """A reply that has just been merged.

    Attributes
    ----------
    order : Order
        The order that it answers.
    reply : Reply
        What came back.
    staleness : int
        Versions of the model between dispatch and merge.
    round : int
        Round that the update counts for.
    late : bool
        Whether it came after its deadline.
    queued : int
        Versions among the staleness that came while the task waited on its device,
        behind another.
    """

    order: Order
    reply: Reply
    staleness: int
    round: int
    late: bool = False
    queued: int = 0


@dataclass(frozen=True)
class Evaluation:
    """The outcome of one evaluation of the global model.

    Attributes
    ----------
    source : str
        The `Evaluator.source`: ``"server"`` (``evaluate_fn``), ``"clients"``, or that
        of an evaluator of the user.
    round, update : int
        Round and number of updates of the model that was evaluated.
    time : float
        Seconds on the loop's clock at which the model had that state.
    metrics : MetricRecord or None
        None if nothing was measured.
    """

    source: str
    round: int
    update: int
    time: float
    metrics: MetricRecord | None


class Callback:
    """Base class of the hooks; every hook does nothing unless overridden.

    All hooks run on the loop's thread, in the order of the callbacks, and read the
    state without changing it. A callback that has `state_dict` and `load_state_dict`
    (see `Stateful`) is saved in checkpoints, where it is found by its name.

    Attributes
    ----------
    name : str
        Tells it from the others in a checkpoint; by default the name of its class.
    files : sequence of Path
        Files that its state counts on: they are on the disk before a checkpoint is.
    """

    name: str = "Callback"
    files: Sequence[Path] = ()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def on_fleet(self, fleet: Fleet) -> None:
        """Get to know the devices of the run, first of all; they are only read."""

    def on_start(self, state: RunState) -> None:
        """React to the start of the run, before its first task."""

    def on_resume(self, state: RunState) -> None:
        """React to a run that resumes from a checkpoint, in place of `on_start`."""
        self.on_start(state)

    def on_pause(self, state: RunState) -> None:
        """React to a moment between two events, at which nothing is half done."""

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """React to a task that has left."""

    def on_update(self, state: RunState, merged: Merged) -> None:
        """React to a reply that has just been merged."""

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """React to the loss of a task; its slot is free again.

        `kind` is one of a few (see `ReplyError`; also ``"no-reply"``, ``"not-sent"``,
        ``"late"`` and, of simulated devices, ``"dropout"``), `reason` says it in full.
        """

    def on_evaluation_due(self, state: RunState, source: str, number: int) -> None:
        """React to the request for an evaluation of round `number`."""

    def on_round(self, state: RunState, number: int) -> None:
        """React to the last update of round `number`."""

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """React to an evaluation that has ended, maybe some updates ago."""

    def on_interrupt(self, state: RunState) -> None:
        """React to a signal that stops the run, in place of `on_end`."""

    def on_end(self, state: RunState) -> None:
        """React to the end of the run, also to one by an error."""


def stateful_parts(callbacks: Iterable[Callback]) -> dict[str, Stateful]:
    """Return the callbacks that have a state, each as a named part of a checkpoint.

    Raises
    ------
    ConfigError
        If two of them have the same name.
    """
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
