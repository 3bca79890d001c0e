"""The base class of what evaluates the global model without delaying the merging."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import MetricRecord

from flwr_asyncdrop.server.callbacks import Evaluation
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State, one_thread


@dataclass(frozen=True)
class PendingEvaluation:
    """An evaluation that has not been collected yet.

    `round`, `update` and `time` are those of its `Evaluation`; nobody changes `arrays`.
    """

    round: int
    update: int
    time: float
    arrays: State

    def ended(self, source: str, metrics: MetricRecord | None) -> Evaluation:
        """Return its outcome."""
        return Evaluation(source, self.round, self.update, self.time, metrics)


class Evaluator(ABC):
    """Evaluates snapshots of the global model beside the loop.

    The loop calls all methods on its own thread. `begin` and ``collect(finish=False)``
    must return soon: the work is done elsewhere, as in a thread or on clients. Pending
    evaluations are saved in checkpoints with their models, and a run that resumes
    begins them again; an evaluator with more to save overrides `state_dict` and
    `load_state_dict`.

    Attributes
    ----------
    source : str
        Identifies it among the evaluators of a run, in the history, the metrics and
        checkpoints. Flower's ``Result`` has only ``"server"`` and ``"clients"``.
    first_round : int
        0 if the initial model is evaluated too, as Flower does on the server; else 1.
    """

    source: str
    first_round: int = 1
    _resumed: Sequence[PendingEvaluation] = ()

    @abstractmethod
    def begin(self, evaluation: PendingEvaluation) -> None:
        """Begin to evaluate a model; it is `pending` even if this is interrupted."""

    @property
    @abstractmethod
    def pending(self) -> Sequence[PendingEvaluation]:
        """What has begun and has not been collected, in the order of `begin`."""

    @abstractmethod
    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return what has ended, in the order of `begin`; `finish` waits for all."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; no evaluation begins before the next run."""

    def state_dict(self) -> StateDict:
        """Return what is pending, with the models."""
        return {"pending": to_plain([*self.pending, *self._resumed])}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was pending; `resume` begins it."""
        self._resumed = from_plain(list[PendingEvaluation], state["pending"])

    def resume(self) -> None:
        """Begin the evaluations that were pending, when the run is ready."""
        while self._resumed:
            first, *self._resumed = self._resumed
            self.begin(first)

    def submit(self, state: RunState, server_round: int) -> None:
        """Take a snapshot of the model and begin to evaluate it."""
        with one_thread():
            arrays = state.snapshot()
        self.begin(PendingEvaluation(server_round, state.updates, state.time, arrays))
