"""Pulling replies so that a slow one delays no other."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread

from flwr.app import Message

from flwr_asyncdrop.flower_internals.grids import GRID_ERRORS, PullMessages
from flwr_asyncdrop.flower_internals.identity import ErrorCode

_PATIENCE = 1.0


@dataclass(eq=False)
class Pull:
    """The messages whose replies were asked for, and the outcome: replies or error."""

    message_ids: Sequence[str]
    replies: list[Message] = field(default_factory=list)
    error: BaseException | None = None


Pulls = Callable[[Sequence[str]], list[Pull]]
"""Returns the outcome of a pull for some messages, and of earlier ones."""


def direct_pulls(pull: PullMessages) -> Pulls:
    """Pull from a grid that returns at once, with what is there."""

    def pulls(message_ids: Sequence[str]) -> list[Pull]:
        try:
            return [Pull(message_ids, list(pull(list(message_ids))))]
        except GRID_ERRORS as error:
            return [Pull(message_ids, error=error)]

    return pulls


class OneByOne:
    """Pulls some replies apart from the others, once a pull of all has failed.

    A reply that cannot be read makes every pull fail that asks for it. Messages whose
    pull has failed are asked for one by one until they come, so that one such reply
    costs no other message. Several threads may call it at once.
    """

    def __init__(self, pull: PullMessages) -> None:
        self._pull = pull
        self._apart: dict[str, None] = {}

    def __call__(self, message_ids: list[str]) -> list[Message]:
        """Return the replies that are there; what `pull` raises if no pull works."""
        together = [name for name in message_ids if name not in self._apart]
        # A list of its own: another thread may change the dict meanwhile.
        apart = [[name] for name in list(self._apart) if name in message_ids]
        replies: list[Message] = []
        works, failure = False, None
        for names in [together, *apart] if together else apart:
            try:
                replies.extend(self._pull(names))
            except GRID_ERRORS as error:
                failure = error
                for name in names:  # to the end: the next time others come first
                    self._apart.pop(name, None)
                    self._apart[name] = None
                if not works:
                    break
            else:
                works = True
                for name in names:
                    self._apart.pop(name, None)
        if failure is not None and not works:
            raise failure
        return replies


class ThreadedPulls:
    """Pulls in threads, and waits at most `patience` seconds for each.

    Flower shows a reply as soon as its device begins to send it, and a pull then waits
    for all of its parts: minutes on a slow link, more than an hour if the device is
    gone. Another pull can get the replies that such a pull has not taken. For those
    that it has taken, Flower gives the other pull an error, which is kept until no
    better answer can come: nobody asks again, and the pulls that have asked already
    come back. `pull` may be called by several threads.
    """

    def __init__(self, pull: PullMessages, patience: float = _PATIENCE) -> None:
        self._pull = pull
        self._patience = patience
        self._done: SimpleQueue[Pull] = SimpleQueue()
        self._under_way: list[Pull] = []
        self._unanswered: list[Pull] = []
        self._errors: dict[str, Message] = {}
        self._answered: set[str] = set()

    def __call__(self, message_ids: Sequence[str]) -> list[Pull]:
        """Pull; return the outcome of this pull and of earlier ones."""
        # No more pulls than messages until any has come back: each may have taken a
        # reply, and more are not needed while the SuperLink is gone. A message that
        # was given up meanwhile is one that they may have taken.
        asked = {name for each in self._unanswered for name in each.message_ids}
        wanted = [name for name in message_ids if name not in self._errors]
        if wanted and len(self._unanswered) < len(asked.union(wanted)):
            pull = Pull(wanted)
            self._under_way.append(pull)
            self._unanswered.append(pull)
            # Nobody waits for it at the end of the process.
            Thread(target=self._work, args=(pull,), daemon=True).start()
        deadline = time.monotonic() + self._patience
        done: list[Pull] = []
        while self._under_way:
            left = 0.0 if done else max(deadline - time.monotonic(), 0.0)
            try:
                pull = self._done.get(left > 0, left)
            except Empty:
                break
            self._under_way.remove(pull)
            self._unanswered.clear()
            done.append(self._without_errors(pull))
        settled = self._settled_errors()
        return [*done, settled] if settled.message_ids else done

    def _without_errors(self, pull: Pull) -> Pull:
        """Leave out errors of replies that another pull has, or may have, taken."""
        replies: list[Message] = []
        for reply in pull.replies:
            message_id = reply.metadata.reply_to_message_id
            if not _is_unavailable(reply):
                self._errors.pop(message_id, None)
                self._answered.add(message_id)
                replies.append(reply)
            elif message_id not in self._answered:
                self._errors[message_id] = reply
        self._answered = {name for name in self._answered if self._is_awaited(name)}
        return Pull(pull.message_ids, replies, pull.error)

    def _settled_errors(self) -> Pull:
        """Return the errors that are the answer after all."""
        settled = [name for name in self._errors if not self._is_awaited(name)]
        return Pull(settled, [self._errors.pop(name) for name in settled])

    def _is_awaited(self, message_id: str) -> bool:
        return any(message_id in pull.message_ids for pull in self._under_way)

    def _work(self, pull: Pull) -> None:
        try:
            pull.replies.extend(self._pull(list(pull.message_ids)))
        except BaseException as error:  # the thread that waits sees to it
            pull.error = error
        self._done.put(pull)


def _is_unavailable(reply: Message) -> bool:
    """Tell whether Flower has no such message (any more), but maybe another pull."""
    return reply.has_error() and reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
