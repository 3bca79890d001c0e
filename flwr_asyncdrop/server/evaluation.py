"""Evaluating the global model without holding up the merging."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import ClassVar

from flwr.app import ArrayRecord, Message, MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.server.callbacks import Evaluation
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel.types import State

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Flower's ``evaluate_fn``: round and global model to metrics."""

_MOST_PENDING = 2


@dataclass(frozen=True)
class Pending:
    """An evaluation that has not been collected yet.

    Attributes
    ----------
    round, update : int
        Round and number of updates of the model.
    time : float
        Seconds on the loop's clock at which the model had that state.
    arrays : dict of str to Tensor
        The model.
    """

    round: int
    update: int
    time: float
    arrays: State


@dataclass(frozen=True)
class UnderWay:
    """What an evaluator has not given back yet, for checkpoints.

    Attributes
    ----------
    evaluations : list of Pending
        In the order of submission.
    """

    evaluations: list[Pending]


class Evaluator(ABC):
    """Evaluates snapshots of the global model beside the loop.

    Attributes
    ----------
    source : str
        Who measures: ``"server"`` or ``"clients"``.
    first_round : int
        0 if the initial model is evaluated too, as Flower has it on the server
        alone; else 1.
    """

    source: ClassVar[str]
    first_round: ClassVar[int]

    def submit(self, state: RunState, server_round: int) -> None:
        """Take a snapshot of `state` and begin to evaluate it."""
        arrays = {name: tensor.clone() for name, tensor in state.served.items()}
        self.begin(Pending(server_round, state.updates, state.time, arrays))

    @abstractmethod
    def begin(self, pending: Pending) -> None:
        """Begin to evaluate a model that nobody changes any more."""

    @property
    @abstractmethod
    def memory(self) -> UnderWay:
        """What has been submitted and not collected."""

    def restore(self, memory: UnderWay) -> None:
        """Begin again with what was under way."""
        for pending in memory.evaluations:
            self.begin(pending)

    @abstractmethod
    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return the evaluations that have ended, in the order of submission.

        Parameters
        ----------
        finish : bool
            Wait for all of them.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds; nothing is submitted any more."""


class ServerEvaluator(Evaluator):
    """Runs Flower's ``evaluate_fn`` in a thread of its own.

    At most two snapshots wait: beyond that `submit` blocks, so that a slow
    ``evaluate_fn`` costs time but never memory.

    Parameters
    ----------
    evaluate_fn : callable
        ``(server_round, arrays) -> MetricRecord or None``.
    """

    source = "server"
    first_round = 0

    def __init__(self, evaluate_fn: EvaluateFn) -> None:
        self._evaluate_fn = evaluate_fn
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="evaluate")
        self._pending: deque[tuple[Pending, Future[Evaluation]]] = deque()

    def begin(self, pending: Pending) -> None:
        """Evaluate a model in the thread, after those that wait there."""
        unfinished = [future for _, future in self._pending if not future.done()]
        if len(unfinished) >= _MOST_PENDING:
            wait(unfinished[:1])
        future = self._executor.submit(self._evaluate, pending)
        self._pending.append((pending, future))

    @property
    def memory(self) -> UnderWay:
        """What is under way, or has ended without being collected."""
        return UnderWay([pending for pending, _ in self._pending])

    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return what has ended; an error in ``evaluate_fn`` is raised here."""
        while self._pending and (finish or self._pending[0][1].done()):
            evaluation = self._pending[0][1].result()
            self._pending.popleft()
            yield evaluation

    def close(self) -> None:
        """End the thread after the evaluation that it is at."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _evaluate(self, pending: Pending) -> Evaluation:
        metrics = self._evaluate_fn(pending.round, wire.to_record(pending.arrays))
        return Evaluation(
            self.source, pending.round, pending.update, pending.time, metrics
        )


@dataclass
class _Sent:
    """A round of client evaluation under way."""

    pending: Pending
    waiting: dict[str, int] = field(default_factory=dict)
    replies: dict[int, Message] = field(default_factory=dict)


class ClientEvaluator(Evaluator):
    """Has clients evaluate the global model on their own data.

    Parameters
    ----------
    mailbox : Mailbox
        The way to the clients.
    configure : callable
        ``(server_round, arrays) -> messages``, the strategy's ``configure_evaluate``.
    aggregate : callable
        ``(server_round, replies) -> MetricRecord or None``, its
        ``aggregate_evaluate``. Replies come in the order of the messages.
    patience : float
        Seconds of real time to wait for the last replies of the run.
    """

    source = "clients"
    first_round = 1

    def __init__(
        self,
        mailbox: Mailbox,
        configure: Callable[[int, ArrayRecord], Iterable[Message]],
        aggregate: Callable[[int, Sequence[Message]], MetricRecord | None],
        patience: float,
    ) -> None:
        self._mailbox = mailbox
        self._configure = configure
        self._aggregate = aggregate
        self._patience = patience
        self._rounds: deque[_Sent] = deque()

    def begin(self, pending: Pending) -> None:
        """Send a model to the clients that ``configure`` chooses."""
        sent = _Sent(pending)
        # First: an interruption of the pushes must not make it forgotten.
        self._rounds.append(sent)
        self._send(sent)

    def restore(self, memory: UnderWay) -> None:
        """Begin again with what was under way."""
        self._rounds.extend(_Sent(pending) for pending in memory.evaluations)
        for sent in self._rounds:
            self._send(sent)

    @property
    def memory(self) -> UnderWay:
        """The models that are with the clients."""
        return UnderWay([sent.pending for sent in self._rounds])

    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return the rounds whose replies are all in, or all if `finish`."""
        while self._rounds:
            sent = self._rounds[0]
            for message in self._mailbox.poll(tuple(sent.waiting)):
                self._keep(sent, message)
            if finish:
                self._wait(sent)
            elif sent.waiting:
                return
            self._rounds.popleft()
            yield self._evaluation(sent)

    def close(self) -> None:
        """Forget the rounds whose replies never came."""
        self._rounds.clear()

    def _send(self, sent: _Sent) -> None:
        pending = sent.pending
        messages = self._configure(pending.round, wire.to_record(pending.arrays))
        for place, message in enumerate(messages):
            if (name := self._mailbox.push(message)) is not None:
                sent.waiting[name] = place

    def _wait(self, sent: _Sent) -> None:
        while sent.waiting:
            message = self._mailbox.wait(tuple(sent.waiting), self._patience)
            if message is None:
                # Who has not replied by now will not: do not wait for every round.
                self._patience = 0.0
                return
            self._keep(sent, message)

    def _keep(self, sent: _Sent, message: Message) -> None:
        place = sent.waiting.pop(message.metadata.reply_to_message_id)
        sent.replies[place] = message

    def _evaluation(self, sent: _Sent) -> Evaluation:
        replies = [sent.replies[place] for place in sorted(sent.replies)]
        at = sent.pending
        metrics = self._aggregate(at.round, replies)
        return Evaluation(self.source, at.round, at.update, at.time, metrics)
