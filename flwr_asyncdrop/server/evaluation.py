"""Evaluating the global model without delaying the merging."""

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Message, MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import (
    GridError,
    GridLostError,
    Interrupted,
)
from flwr_asyncdrop.flower_internals.identity import unsent_copy
from flwr_asyncdrop.server.callbacks import Evaluation
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State, one_thread, steady_kernels

logger = logging.getLogger("flwr.asyncdrop")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Flower's ``evaluate_fn``: round and global model to metrics."""

_MOST_PENDING = 2
_SLICE_SECONDS = 0.5


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


class ServerEvaluator(Evaluator):
    """Runs Flower's ``evaluate_fn`` in a thread of its own.

    At most two snapshots wait. Beyond that `begin` blocks, so that a slow
    ``evaluate_fn`` costs time but not memory. `patiently` is entered around each wait
    for it; it may raise Interrupted. Not `beside` the loop, `begin` waits for the end:
    where clients train in this process, all draw from the same global generators.
    """

    source = "server"
    first_round = 0

    def __init__(
        self,
        evaluate_fn: EvaluateFn,
        patiently: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        beside: bool = True,
    ) -> None:
        self._evaluate_fn = evaluate_fn
        self._patiently = patiently
        self._beside = beside
        self._threads = torch.get_num_threads()
        self._executor: ThreadPoolExecutor | None = None
        self._begun: deque[tuple[PendingEvaluation, Future[Evaluation]]] = deque()

    def begin(self, evaluation: PendingEvaluation) -> None:
        """Evaluate a model in the thread, after those that wait there."""
        unfinished = [future for _, future in self._begun if not future.done()]
        if len(unfinished) >= _MOST_PENDING:
            try:
                with self._patiently():
                    _wait_for(unfinished[0])
            except Interrupted:
                self._resumed = [evaluation, *self._resumed]
                raise
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="evaluate")
        future = self._executor.submit(self._evaluate, evaluation)
        self._begun.append((evaluation, future))
        if not self._beside:
            with self._patiently():
                _wait_for(future)

    @property
    def pending(self) -> Sequence[PendingEvaluation]:
        """Those that run, wait, or have ended without being collected."""
        return [evaluation for evaluation, _ in self._begun]

    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return what has ended; an error in ``evaluate_fn`` is raised here."""
        while self._begun and (finish or self._begun[0][1].done()):
            future = self._begun[0][1]
            with self._patiently() if finish else nullcontext():
                _wait_for(future)
            evaluation = future.result()
            self._begun.popleft()
            yield evaluation

    def close(self) -> None:
        """End the thread after the evaluation that it runs, and forget all others."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = None  # the next run has another one
        self._begun.clear()

    def _evaluate(self, evaluation: PendingEvaluation) -> Evaluation:
        arrays = wire.to_record(evaluation.arrays)
        # The loop may count the FLOPs of a new submodel meanwhile.
        with steady_kernels():
            # Each thread has a setting of its own, and this one's must be known.
            torch.set_num_threads(self._threads)
            found = self._evaluate_fn(evaluation.round, arrays)
        metrics = wire.metric_record(found, f"evaluate_fn({evaluation.round}, ...)")
        return evaluation.ended(self.source, metrics)


def _wait_for(future: Future[Evaluation]) -> None:
    """Wait in slices: without an end, a lock may never let go for Ctrl-C."""
    while not wait([future], _SLICE_SECONDS).done:
        pass


@dataclass
class _Sent:
    """A round of client evaluation in progress: messages by their place in it.

    One that is not `complete` was interrupted while being sent: it stays pending.
    """

    evaluation: PendingEvaluation
    complete: bool = False
    waiting: dict[str, int] = field(default_factory=dict)
    replies: dict[int, Message] = field(default_factory=dict)
    # Those that may have to be sent again, as they were or in another form.
    messages: dict[int, Message] = field(default_factory=dict)


class ClientEvaluator(Evaluator):
    """Has clients evaluate the global model on their own data.

    `configure` and `aggregate` are the strategy's ``configure_evaluate`` and
    ``aggregate_evaluate``; replies come in the order of the messages. `patience` is how
    many real seconds to wait for the last replies of the run. `again` makes, of a
    message and its reply, another one to be sent in its place; None if that is done.
    When more than `most_rounds` are under way, the first ends with what has come: else
    one silent device would hold up all of them, and each holds a model.
    """

    source = "clients"

    def __init__(
        self,
        mailbox: Mailbox,
        configure: Callable[[int, ArrayRecord], Iterable[Message]],
        aggregate: Callable[[int, Sequence[Message]], MetricRecord | None],
        patience: float,
        again: Callable[[Message, Message], Message | None] | None = None,
        most_rounds: float = math.inf,
    ) -> None:
        self._mailbox = mailbox
        self._most_rounds = most_rounds
        self._said_missing: set[bool] = set()  # at the end, or before
        self._untaken: set[int] = set()
        self._again = again
        self._configure = configure
        self._aggregate = aggregate
        self._patience = patience
        self._rounds: deque[_Sent] = deque()

    def begin(self, evaluation: PendingEvaluation) -> None:
        """Send a model to the clients that ``configure`` chooses."""
        sent = _Sent(evaluation)
        # First: an interruption of the pushes must not make it forgotten.
        self._rounds.append(sent)
        arrays = wire.to_record(evaluation.arrays)
        try:
            messages = list(self._configure(evaluation.round, arrays))
            for place, message in enumerate(messages):
                self._send(sent, place, message)
        except GridLostError:
            raise
        except GridError as error:
            logger.warning("no client evaluates round %d: %s", evaluation.round, error)
        sent.complete = True

    @property
    def pending(self) -> Sequence[PendingEvaluation]:
        """The models that clients evaluate now."""
        return [sent.evaluation for sent in self._rounds]

    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return the rounds whose replies are all in, or all if `finish`."""
        while self._rounds and self._rounds[0].complete:
            sent = self._rounds[0]
            for message in self._mailbox.poll(tuple(sent.waiting)):
                self._keep(sent, message)
            if finish:
                self._wait(sent)
            elif sent.waiting and len(self._rounds) <= self._most_rounds:
                return
            if sent.waiting:
                self._say_missing(sent, finish=finish)
            self._rounds.popleft()
            self._mailbox.forget(sent.waiting)
            replies = [sent.replies[place] for place in sorted(sent.replies)]
            number = sent.evaluation.round
            found = self._aggregate(number, replies)
            metrics = wire.metric_record(found, f"aggregate_evaluate({number}, ...)")
            yield sent.evaluation.ended(self.source, metrics)

    def _say_missing(self, sent: _Sent, *, finish: bool) -> None:
        """Warn of silent clients: once on the way, and once at the end."""
        if finish not in self._said_missing:
            self._said_missing.add(finish)
            later = len(self._rounds) - 1
            logger.warning(
                "%d of %d clients have not evaluated round %d %s: its metrics are "
                "those of the others (said once)",
                len(sent.waiting),
                len(sent.waiting) + len(sent.replies),
                sent.evaluation.round,
                "by the end of the run"
                if finish
                else f"while {later} later ones began",
            )

    def close(self) -> None:
        """Forget the rounds whose replies never came."""
        for sent in self._rounds:
            self._mailbox.forget(sent.waiting)
        self._rounds.clear()

    def _send(self, sent: _Sent, place: int, message: Message) -> None:
        try:
            name = self._mailbox.push(message)
        except GridLostError:
            raise
        except GridError as error:
            node = message.metadata.dst_node_id
            logger.warning("no evaluation from node %d: %s", node, error)
        else:
            if name is not None:
                sent.waiting[name] = place
                sent.messages[place] = message
                return
            node = message.metadata.dst_node_id
            if node not in self._untaken:
                self._untaken.add(node)
                logger.warning(
                    "no evaluation from node %d: the grid did not take its message, as "
                    "if no such node were there (said once a node)",
                    node,
                )

    def _wait(self, sent: _Sent) -> None:
        while sent.waiting:
            message = self._mailbox.wait(
                tuple(sent.waiting), self._patience, beyond_outages=True
            )
            if message is None:
                # Who has not replied by now will not: do not wait for every round.
                self._patience = 0.0
                return
            self._keep(sent, message)

    def _keep(self, sent: _Sent, message: Message) -> None:
        place = sent.waiting.pop(message.metadata.reply_to_message_id)
        asked = sent.messages.pop(place)
        other = None
        if self._mailbox.dead_workers.answered(message):
            other = unsent_copy(asked)
        elif self._again is not None:
            other = self._again(asked, message)
        if other is None:
            sent.replies[place] = wire.unpacked_evaluation(message)
        else:
            self._send(sent, place, other)
