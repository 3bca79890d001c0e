"""A small real Grid driven by a handler, for tests of the server room."""

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_asyncdrop.flower_internals.identity import assume_identity

assume_identity(run_id=1)

Handler = Callable[[Message], Message | None]


class RefusedError(Exception):
    """Raised by a handler if the grid is not to take the message."""


class HandlerGrid(Grid):
    """Answers each message with what `handler` makes of it, after `delay` seconds.

    Time is its own: `sleep` moves it on. A handler that returns None never answers.
    """

    answers_at_once = True

    def __init__(
        self,
        handler: Handler,
        node_ids: Iterable[int] = (1, 2, 3),
        delay: Callable[[Message], float] = lambda message: 0.0,
    ) -> None:
        self.handler = handler
        self.node_ids = list(node_ids)
        self.delay = delay
        self.now = 0.0
        self.pushed: list[Message] = []
        self.refuse: list[object] | None = None
        self._numbers = count()
        self._replies: list[tuple[float, int, Message]] = []

    def timer(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-3)

    @property
    def run(self):
        raise NotImplementedError

    def set_run(self, run) -> None:
        raise NotImplementedError

    def create_message(self, *args, **kwargs) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("an asynchronous server never waits for a round")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.node_ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            if self.refuse is not None:
                return self.refuse
            number = next(self._numbers)
            message.metadata.__dict__["_message_id"] = f"m{number}"
            try:
                reply = self.handler(message)
            except RefusedError:
                return []
            self.pushed.append(message)
            ids.append(f"m{number}")
            if reply is not None:
                due = self.now + self.delay(message)
                heapq.heappush(self._replies, (due, number, reply))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted, here, left = set(message_ids), [], []
        for due, number, reply in sorted(self._replies, key=lambda entry: entry[:2]):
            ready = due <= self.now and reply.metadata.reply_to_message_id in wanted
            (here if ready else left).append((due, number, reply))
        self._replies = left
        return [reply for _, _, reply in here]


def echo(message: Message) -> Message:
    return Message(RecordDict(dict(message.content)), reply_to=message)
