"""Small hooks around the loop, so that nobody needs to copy the loop."""

from dataclasses import dataclass

from flwr.app import MetricRecord

from flwr_asyncdrop.server.state import Order, ServerState
from flwr_asyncdrop.wire import Reply

__all__ = ["Callback", "Evaluation", "Merged"]


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
    """

    order: Order
    reply: Reply
    staleness: int
    round: int


@dataclass(frozen=True)
class Evaluation:
    """The outcome of one evaluation of the global model.

    Attributes
    ----------
    source : str
        ``"server"`` (``evaluate_fn``) or ``"clients"``.
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
    state without changing it.
    """

    def on_start(self, state: ServerState) -> None:
        """The run is about to dispatch its first task."""

    def on_dispatch(self, state: ServerState, order: Order) -> None:
        """A task has left."""

    def on_update(self, state: ServerState, merged: Merged) -> None:
        """A reply has been merged."""

    def on_failure(self, state: ServerState, order: Order, reason: str) -> None:
        """A task was lost; its slot is free again."""

    def on_evaluation_due(self, state: ServerState, source: str, number: int) -> None:
        """An evaluation of round `number` has been asked for."""

    def on_round(self, state: ServerState, number: int) -> None:
        """Round `number` has had all its updates."""

    def on_evaluation(self, state: ServerState, evaluation: Evaluation) -> None:
        """An evaluation has ended; updates may have been merged meanwhile."""

    def on_end(self, state: ServerState) -> None:
        """The run has ended, with all evaluations in; also after an error."""
