"""One message at a time over Flower's Grid."""

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_asyncdrop import wire
from flwr_asyncdrop.server.dead_workers import DeadWorkers
from flwr_asyncdrop.server.steady_grid import SteadyGrid

_SHORTEST_POLL = 0.002
_LONGEST_POLL = 0.25


class Mailbox:
    """Pushes tasks and waits for replies through any `Grid`, which stays as it is.

    `SteadyGrid` sees to whatever the grid raises.

    An asynchronous server needs the first reply of many. A grid that can block until a
    reply is there offers ``wait_any(message_ids, timeout)``; any other is polled, ever
    more slowly while nothing comes. One that keeps replies in this process offers
    ``forget_messages(message_ids)``.

    `check` is called before each look for a reply. `patiently` is entered around each
    push, and each look during a wait, which may last as long as the SuperLink is gone.
    What either raises ends the push or the wait.

    With `packs` the arrays of a record travel as one, unless the grid is in this
    process: its clients need a `CodecMod`.

    The loop, the question to new devices and the evaluators share it: a reply stays
    until who waits for it asks again, or says by `forget` that nobody will.

    `duplicates` counts second replies to a message, which are thrown away.
    `dead_workers` recognises replies that no device has made.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        check: Callable[[], None] | None = None,
        patiently: Callable[[], AbstractContextManager[None]] = nullcontext,
        packs: bool = False,
    ) -> None:
        self._grid = SteadyGrid.of(grid, timer=timer, sleep=sleep, patiently=patiently)
        self._timer = timer
        self._sleep = sleep
        self._check = check
        self._patiently = patiently
        self._packs = packs and not self._grid.answers_at_once
        self._out: set[str] = set()  # of which the grid has, or gets, a reply
        self._awaited: set[str] = set()
        self._arrived: dict[str, Message] = {}
        self.duplicates = 0
        self.dead_workers = DeadWorkers(
            self._grid.has_ray_workers, self._grid.patience, timer
        )

    def push(self, message: Message) -> str | None:
        """Send a message; return its id, or None if the grid did not take it.

        GridError if that was tried again, and failed.
        """
        packed = wire.packed_message(message) if self._packs else message
        message_id = self._grid.push(packed)
        if message_id is not None:
            self._out.add(message_id)
        return message_id

    @property
    def pushes_fail(self) -> bool:
        """Whether the last push has failed."""
        return self._grid.pushes_fail

    @property
    def push_due_in(self) -> float:
        """Seconds to wait before the next push, after one that has failed."""
        return self._grid.push_due_in

    def poll(self, message_ids: Collection[str]) -> list[Message]:
        """Return the replies that are there now, each exactly once."""
        self._pull(message_ids)
        here = [name for name in message_ids if name in self._arrived]
        return [self._arrived.pop(name) for name in here]

    def wait(
        self,
        message_ids: Collection[str],
        timeout: float,
        *,
        beyond_outages: bool = False,
    ) -> Message | None:
        """Wait for the first reply to any of the messages; None if none came in time.

        `timeout` is in real seconds, maybe infinite; with `beyond_outages` it begins
        anew when the grid works again. Without messages it only waits.
        """
        deadline = self._timer() + timeout
        pause = _SHORTEST_POLL
        while True:
            if self._check is not None:
                self._check()
            if (message := self._take(message_ids)) is not None:
                return message
            with self._patiently():
                self._pull(message_ids)
            if (message := self._take(message_ids)) is not None:
                return message
            if beyond_outages and self._grid.pulls_fail:
                deadline = self._timer() + timeout
            left = deadline - self._timer()
            if left <= 0:
                return None
            if not message_ids or not self._grid.wait(
                message_ids, min(left, _LONGEST_POLL)
            ):
                self._sleep(min(left, pause))
                pause = min(2 * pause, _LONGEST_POLL)

    def forget(self, message_ids: Collection[str]) -> None:
        """Keep no reply to these: nobody will ask for it."""
        self._grid.forget(self._out.intersection(message_ids))
        self._out.difference_update(message_ids)
        self._awaited.difference_update(message_ids)
        for name in message_ids:
            self._arrived.pop(name, None)

    def close(self) -> None:
        """Forget all that is out, as the run is over: another may have the grid."""
        self.forget(tuple(self._out))

    def _take(self, message_ids: Collection[str]) -> Message | None:
        """Take the reply that arrived first among those asked for."""
        if not self._arrived:
            return None
        first = next((name for name in self._arrived if name in message_ids), None)
        return None if first is None else self._arrived.pop(first)

    def _pull(self, message_ids: Collection[str]) -> None:
        missing = [n for n in dict.fromkeys(message_ids) if n not in self._arrived]
        self._awaited.update(missing)
        for pull in self._grid.pulls(missing) if missing else ():
            asked = set(pull.message_ids)
            for message in pull.replies:
                message_id = message.metadata.reply_to_message_id
                if message_id not in asked:
                    self.duplicates += 1
                elif message_id in self._awaited:
                    self._awaited.remove(message_id)
                    self._arrived[message_id] = message
                asked.discard(message_id)
                self._out.discard(message_id)
