"""Evaluating the global model on clients, with their own data."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import GridError, GridLostError
from flwr_asyncdrop.flower_internals.identity import unsent_copy
from flwr_asyncdrop.server.callbacks import Evaluation
from flwr_asyncdrop.server.evaluator import Evaluator, PendingEvaluation
from flwr_asyncdrop.server.mailbox import Mailbox

logger = logging.getLogger("flwr.asyncdrop")


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
                "clients that have not evaluated round %d %s: %d of %d; its metrics "
                "are those of the others (said once)",
                sent.evaluation.round,
                "by the end of the run"
                if finish
                else f"while {later} later ones began",
                len(sent.waiting),
                len(sent.waiting) + len(sent.replies),
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
