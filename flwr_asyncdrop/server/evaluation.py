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
from flwr_asyncdrop.server.state import ServerState
from flwr_asyncdrop.submodel.types import State

__all__ = ["ClientEvaluator", "EvaluateFn", "Evaluator", "ServerEvaluator"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Flower's ``evaluate_fn``: round and global model to metrics."""

_MOST_PENDING = 2


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

    @abstractmethod
    def submit(self, state: ServerState, server_round: int) -> None:
        """Take a snapshot of `state` and begin to evaluate it."""

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
        self._pending: deque[Future[Evaluation]] = deque()

    def submit(self, state: ServerState, server_round: int) -> None:
        """Copy the global model and evaluate the copy."""
        unfinished = [future for future in self._pending if not future.done()]
        if len(unfinished) >= _MOST_PENDING:
            wait(unfinished[:1])
        arrays = {name: tensor.clone() for name, tensor in state.served.items()}
        self._pending.append(
            self._executor.submit(
                self._evaluate, arrays, server_round, state.updates, state.time
            )
        )

    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return what has ended; an error in ``evaluate_fn`` is raised here."""
        while self._pending and (finish or self._pending[0].done()):
            yield self._pending.popleft().result()

    def close(self) -> None:
        """End the thread after the evaluation that it is at."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _evaluate(
        self, arrays: State, server_round: int, update: int, time: float
    ) -> Evaluation:
        metrics = self._evaluate_fn(server_round, wire.to_record(arrays))
        return Evaluation(self.source, server_round, update, time, metrics)


@dataclass
class _Sent:
    """A round of client evaluation under way."""

    round: int
    update: int
    time: float
    waiting: dict[str, int]
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

    def submit(self, state: ServerState, server_round: int) -> None:
        """Send the global model to the clients that ``configure`` chooses."""
        messages = self._configure(server_round, wire.to_record(state.served))
        pushed = [self._mailbox.push(message) for message in messages]
        waiting = {name: place for place, name in enumerate(pushed) if name}
        sent = _Sent(server_round, state.updates, state.time, waiting)
        self._rounds.append(sent)

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
        metrics = self._aggregate(sent.round, replies)
        return Evaluation(self.source, sent.round, sent.update, sent.time, metrics)
