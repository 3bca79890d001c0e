"""A Grid whose calls are tried again: what one raises costs a message at most."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Self, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_asyncdrop.exceptions import (
    AsyncDropError,
    GridError,
    GridLostError,
    Interrupted,
)
from flwr_asyncdrop.flower_internals.exits import end_in_time, end_without_daemons
from flwr_asyncdrop.flower_internals.grids import (
    GRID_ERRORS,
    answers_at_once,
    pull_function,
)
from flwr_asyncdrop.flower_internals.identity import unsent_copy
from flwr_asyncdrop.flower_internals.ray_workers import has_ray_workers
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.server.outages import Outages
from flwr_asyncdrop.server.pulls import OneByOne, Pull, ThreadedPulls, direct_pulls
from flwr_asyncdrop.server.timed_call import TimedCall

_T = TypeVar("_T")
_PUSH, _PULL, _NODES = "push_messages", "pull_messages", "get_node_ids"
_WAIT, _FORGET = "wait_any", "forget_messages"
_SECONDS = 3.0  # that a message is tried again while the run has other things to do
_NODES_SECONDS = 10.0
_BUGS = (TypeError, AttributeError, NameError, ImportError, AssertionError)


class SteadyGrid(Grid):
    """Any `Grid`, with one policy for whatever its calls raise.

    A call that raises is tried again, with pauses that grow to 5 s. A message that
    cannot be pushed for 3 s is given up with a GridError. Replies that cannot be pulled
    are pulled later. While nodes cannot be asked for, they are those seen last. When
    pushes or pulls have failed for `patience` real seconds, GridLostError ends the run.
    With `insists`, as a virtual clock needs it, no message is given up before that.

    What a grid raises is its fault, whatever the type: Flower's raise the errors of a
    dozen libraries, and a stranger's reply can make a pull raise anything. Three kinds
    are raised at once. Errors of this package, as of a LocalGrid that is closed, say
    themselves what to do. Signals and exits end the process. `_BUGS`, which no network
    raises, are mistakes in a program; but not from a pull once any has worked.

    Flower's remote grids are called in threads, as they wait for their SuperLink
    however long it is away. So is any grid that does not say `answers_at_once`: it may
    be a wrapper around one of these. `patiently` is entered around each push and each
    look for nodes; it may raise Interrupted, which ends a look with the nodes seen
    last, so that the run can get to a point at which it can be saved.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        patience: float = math.inf,
        insists: bool = False,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patiently: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._grid = grid
        self.patience = patience
        self._insists = insists
        self._timer = timer
        self._sleep = sleep
        self._patiently = patiently
        self._outages = Outages(patience, timer)
        pull = OneByOne(pull_function(grid) or (lambda ids: grid.pull_messages(ids)))
        self.answers_at_once = answers_at_once(grid)
        if not self.answers_at_once:
            end_without_daemons()
            end_in_time()
        self._pulls = (
            direct_pulls(pull) if self.answers_at_once else ThreadedPulls(pull)
        )
        self._has_pulled = False
        self.has_ray_workers = has_ray_workers(grid)
        self.runs_clients_here = bool(getattr(grid, "runs_clients_here", False))
        self._node_ids: list[int] | None = None
        self._look: TimedCall[list[int]] | None = None
        self._wait_any = getattr(grid, _WAIT, None)
        self._forget = getattr(grid, _FORGET, None)

    @classmethod
    def of(cls, grid: Grid, **options: Any) -> Self:
        """Return a grid as it is if it is steady, else made steady."""
        return grid if isinstance(grid, cls) else cls(grid, **options)

    @property
    def client_state(self) -> str:
        """The key of a record that simulated clients keep, as far as the grid knows."""
        return str(getattr(self._grid, "client_state", ""))

    @property
    def pushes_fail(self) -> bool:
        """Whether the last push has failed."""
        return self._outages.is_failing(_PUSH)

    @property
    def pulls_fail(self) -> bool:
        """Whether the last pull has failed."""
        return self._outages.is_failing(_PULL)

    @property
    def push_due_in(self) -> float:
        """Seconds to wait before the next push, after one that has failed."""
        return self._outages.due_in(_PUSH)

    def push(self, message: Message) -> str | None:
        """Send a message; return its id, or None if the grid did not take it.

        Grids answer a failed push with no id, None, or an empty list: one message a
        push keeps these apart from success. One that has raised may have arrived none
        the less: see `unsent_copy`. GridError if it is given up.
        """
        with self._patiently():
            return self._push_again(message)

    def pulls(self, message_ids: Sequence[str]) -> list[Pull]:
        """Return the pulls that have come back; none while it is too early to ask."""
        if self._outages.due_in(_PULL) > 0:
            return []
        began = self._timer()
        done = self._pulls(message_ids)
        errors = [pull.error for pull in done if pull.error is not None]
        if errors:
            self._failed(_PULL, errors[0], began, ends_run=True)
        elif done:
            self._has_pulled = True
            self._outages.worked(_PULL)
        return [pull for pull in done if pull.error is None]

    def wait(self, message_ids: Collection[str], seconds: float) -> bool:
        """Wait for a reply to any of the messages, if this grid can; else False."""
        pulls_fail, too_early = self.pulls_fail, self._outages.due_in(_WAIT) > 0
        if self._wait_any is None or pulls_fail or too_early:
            return False
        with suppress(GridError):
            self._attempt(_WAIT, partial(self._wait_any, message_ids, seconds))
            return True
        return False

    def forget(self, message_ids: Collection[str]) -> None:
        """Say that nobody will ask for these replies, if this grid listens."""
        if self._forget is not None and message_ids:
            with suppress(GridError):
                self._attempt(_FORGET, partial(self._forget, message_ids))

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are connected, or were when they were last seen.

        GridError if none have ever been seen.
        """
        known = self._node_ids
        if known is not None and self._outages.due_in(_NODES) > 0:
            return list(known)
        try:
            with self._patiently():
                self._node_ids = known = self._look_again()
        except (GridError, Interrupted):
            if known is None:
                raise
        return list(known)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; return the ids of those that were taken."""
        ids = [self.push(message) for message in messages]
        return [message_id for message_id in ids if message_id is not None]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there."""
        pulls = self.pulls(list(message_ids))
        return [reply for pull in pulls for reply in pull.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Do a synchronous round, as the grid does it."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Create a message."""
        return self._grid.create_message(*arguments, **options)

    def get_nodes(self) -> Any:
        """Return what the grid knows of its nodes."""
        return self._grid.get_nodes()

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run, as the grid has it."""
        return self._grid.run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def _push_again(self, message: Message) -> str | None:
        unsent = unsent_copy(message)
        while True:
            try:
                ids = self._attempt(_PUSH, partial(self._push, message), ends_run=True)
            except GridLostError:
                raise
            except GridError:
                if not self._insists and self._outages.duration(_PUSH) >= _SECONDS:
                    raise
                self._pause(_PUSH)
                message = unsent_copy(unsent)
            else:
                return ids[0] if ids and ids[0] else None

    def _look_again(self) -> list[int]:
        while True:
            try:
                return self._attempt(_NODES, self._look_for_nodes)
            except GridError:
                if self._outages.duration(_NODES) >= _SECONDS:
                    raise
                self._pause(_NODES)

    def _push(self, message: Message) -> list[str | None]:
        def call() -> list[str | None]:
            return list(self._grid.push_messages([message]))

        if self.answers_at_once:
            return call()
        left = self.patience - self._outages.duration(_PUSH)
        return TimedCall(call).result(left)

    def _look_for_nodes(self) -> list[int]:
        if self.answers_at_once:
            return list(self._grid.get_node_ids())
        if self._look is not None and self._look.is_under_way:
            raise TimeoutError("the call before has not returned yet")
        self._look = TimedCall(lambda: list(self._grid.get_node_ids()))
        return self._look.result(min(_NODES_SECONDS, self.patience))

    def _attempt(
        self, name: str, call: Callable[[], _T], *, ends_run: bool = False
    ) -> _T:
        """Make a call; GridError if it raises."""
        began = self._timer()
        try:
            result = call()
        except GRID_ERRORS as error:
            self._failed(name, error, began, ends_run=ends_run)
            raise GridError(f"{name} failed: {one_line(error)}") from error
        self._outages.worked(name)
        return result

    def _failed(
        self, name: str, error: BaseException, began: float, *, ends_run: bool
    ) -> None:
        """Note what a call has raised, or raise it if it is no fault of the grid."""
        passes = isinstance(error, AsyncDropError) or not isinstance(error, GRID_ERRORS)
        is_bug = isinstance(error, _BUGS) and not (name == _PULL and self._has_pulled)
        if passes or is_bug:
            raise error
        self._outages.failed(name, error, began, ends_run=ends_run)

    def _pause(self, name: str) -> None:
        """Sleep until a call is due again."""
        while (left := self._outages.due_in(name)) > 0:
            self._sleep(left)
