"""Saves a run while it goes on, off the loop's path."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors import SafetensorError
from torch import Tensor

from flwr_asyncdrop.checkpoint.checkpoints import Checkpoints
from flwr_asyncdrop.checkpoint.codec import Json, encode
from flwr_asyncdrop.checkpoint.files import Checkpoint, forget_later, write
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.evaluation import Evaluator, UnderWay
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.state import Order, RunState
from flwr_asyncdrop.submodel import State

logger = logging.getLogger("flwr.asyncdrop")


@runtime_checkable
class Saved(Protocol):
    """A callback, or an evaluator, that has more to save than the state of the run."""

    @property
    def memory(self) -> Any:
        """All that changes while the run goes on: None, or a dataclass.

        Its fields are of the kinds that `encode` takes, and none of its tensors is
        changed in place while it is written.
        """

    def restore(self, memory: Any) -> None:
        """Go on from there."""


class Keeper(Callback):
    """Writes checkpoints, in a thread of its own.

    The loop's thread only copies what changes in place, which is the global model. It
    waits for the disk only while the checkpoint before is still being written. One
    that cannot be written costs a warning, not the run.

    Parameters
    ----------
    checkpoints : Checkpoints
        When and where.
    session : Run
        The run.
    evaluators : sequence of Evaluator
        What is under way there is saved too.
    callbacks : sequence of Callback
        Those with something to save are, by their place.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        session: Run,
        evaluators: Sequence[Evaluator],
        callbacks: Sequence[Callback],
    ) -> None:
        self._checkpoints = checkpoints
        self._session = session
        self._evaluators: dict[str, Saved] = {
            f"evaluations-{e.source}": e for e in evaluators
        }
        self._callbacks: dict[str, Saved] = {
            f"callback-{place}-{type(callback).__name__}": callback
            for place, callback in enumerate(callbacks)
            if isinstance(callback, Saved)
        }
        self._files = [c.path for c in callbacks if isinstance(c, HistoryWriter)]
        self._updates_between = checkpoints.every * session.updates_per_round
        self._due = 0
        self._resumed: Path | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def restore(self, checkpoint: Checkpoint) -> list[UnderWay]:
        """Let the aggregator and the callbacks go on from a checkpoint.

        Nothing changes on the disk before the run begins.

        Returns
        -------
        list of UnderWay
            What the evaluators have to begin with again, when all else is ready.

        Raises
        ------
        CheckpointError
            If it does not fit.
        """
        self._resumed = checkpoint.path
        aggregator = self._session.aggregator
        kind = type(aggregator.memory)
        aggregator.memory = checkpoint.part("aggregator", kind)
        for name, callback in self._callbacks.items():
            callback.restore(checkpoint.part(name, type(callback.memory)))
        return [checkpoint.part(name, UnderWay) for name in self._evaluators]

    def on_resume(self, state: RunState) -> None:
        """Forget what came after the checkpoint that the run goes on from."""
        if self._resumed is not None:
            forget_later(self._resumed)
        self._due = self._next(state)

    def on_pause(self, state: RunState) -> None:
        """Save the run, if it is time."""
        if state.updates >= self._due:
            self._due = self._next(state)
            self._save(state)

    def on_interrupt(self, state: RunState) -> None:
        """Save the run as it is now, and say how to go on."""
        self._save(state)
        self._thread.shutdown()
        logger.warning("interrupted; to go on: %s", self._checkpoints.command)

    def on_end(self, state: RunState) -> None:
        """Save a run that ended before its last round, and wait for the disk."""
        if state.ended:
            self._save(state)
            logger.warning("to go on: %s", self._checkpoints.command)
        self._thread.shutdown()

    def _next(self, state: RunState) -> int:
        """Return the number of updates at which the next checkpoint is due."""
        return (state.updates // self._updates_between + 1) * self._updates_between

    def _save(self, state: RunState) -> None:
        """Copy what changes, and have the rest done by the thread."""
        if self._writing is not None:
            self._writing.result()
        tensors: dict[str, Tensor] = {}
        saved: dict[str, Saved] = {**self._callbacks, **self._evaluators}
        memories = {
            "state": _unchanging(state, simulated=self._session.simulated),
            "session": self._session.memory,
            "aggregator": self._session.aggregator.memory,
            **{name: part.memory for name, part in saved.items()},
        }
        body = {
            "settings": dict(self._checkpoints.settings),
            "updates": state.updates,
            "devices": state.num_devices,
            "parts": {
                name: encode(memory, type(memory), name, tensors)
                for name, memory in memories.items()
            },
        }
        self._writing = self._thread.submit(self._write, body, tensors)

    def _write(self, body: Mapping[str, Json], tensors: Mapping[str, Tensor]) -> None:
        checkpoints = self._checkpoints
        try:
            write(checkpoints.path, body, tensors, checkpoints.keep, self._files)
        except (OSError, SafetensorError) as error:
            logger.warning(
                "no checkpoint at update %d, and the run goes on: %s",
                body["updates"],
                error,
            )


def _unchanging(state: RunState, *, simulated: bool) -> RunState:
    """Return a state that nobody changes, and that has no more than resuming needs."""
    orders, late = state.in_flight, state.late
    if not simulated:
        # Real devices get no task twice, so nobody needs to know what was sent.
        orders, late = _without_base(orders), _without_base(late)
    return replace(
        state,
        arrays=_copy(state.arrays),
        averaged=None if state.averaged is None else _copy(state.averaged),
        in_flight=orders,
        late=late,
    )


def _copy(arrays: State) -> State:
    return {name: tensor.clone() for name, tensor in arrays.items()}


def _without_base(orders: Mapping[str, Order]) -> dict[str, Order]:
    return {name: replace(order, base=None) for name, order in orders.items()}
