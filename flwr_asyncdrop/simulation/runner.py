"""Who runs the ClientApp for a grid: the interface, its calls, and the plain way."""

import logging
import os
import pickle
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from flwr_asyncdrop.flower_internals.identity import ErrorCode
from flwr_asyncdrop.readable import one_line, type_of
from flwr_asyncdrop.seeding import kept_global_generators, seed_global_generators
from flwr_asyncdrop.simulation.client_app import ClientAppSource, load_client_app

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """The reply to a call, and the node's context after it."""

    reply: Message
    context: Context


@dataclass(frozen=True)
class ClientCall:
    """A message for a node, and the node's context before it. It pickles.

    `seed` is of the global generators of Python, NumPy and PyTorch as it runs, so that
    its answer does not depend on where, or on what ran there before.
    """

    message: Message
    context: Context
    seed: int

    def run(self, app: ClientApp) -> Answer:
        """Call the ClientApp, which may change the message and the context.

        The global generators of this process are seeded for it, and not set back.
        Whatever it raises becomes an Error reply. The grid then keeps the context as it
        was before, as Flower's simulation engine does. A process that it has forked
        ends where the ClientApp does.
        """
        seed_global_generators(self.seed)
        process = os.getpid()
        try:
            try:
                reply = app(self.message, self.context)
            finally:
                _end_if_forked(process)
        except (Exception, SystemExit) as error:
            _log.warning("A ClientApp raised:\n%s", traceback.format_exc())
            return self.fail(one_line(error))
        fault = self._fault(reply)
        return self.fail(fault) if fault else Answer(reply, self.context)

    def read(self, unpickled: Callable[[], Answer]) -> Answer:
        """Return the answer that another process gave, or an Error reply for it."""
        try:
            return unpickled()
        except Exception as error:  # whatever a user's class raises
            return self.fail(f"The ClientApp's reply cannot be read: {one_line(error)}")

    def fail(self, reason: str, *, crashed: bool = False) -> Answer:
        """Answer with an Error reply; `reason` is one line.

        `crashed` says that the process or machine that ran the ClientApp was lost;
        else the ClientApp itself is at fault.
        """
        code = (
            ErrorCode.CLIENT_APP_CRASHED
            if crashed
            else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        )
        return Answer(Message(Error(code, reason), reply_to=self.message), self.context)

    def _fault(self, reply: object) -> str | None:
        if not isinstance(reply, Message):
            return f"The ClientApp returned {type_of(reply)}, not a Message."
        if reply.metadata.reply_to_message_id != self.message.metadata.message_id:
            if reply.has_error() and reply.error.reason:
                return reply.error.reason  # a mod of Flower's answers the app's reply
            return (
                "The ClientApp's reply answers another message; "
                "make it with Message(content, reply_to=message)."
            )
        return None


def _end_if_forked(process: int) -> None:
    """End this process unless it is that one: it is a fork of the ClientApp's own.

    It would answer a second time, and go on with all that its parent does.
    """
    if os.getpid() == process:
        return
    error = sys.exception()
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        os._exit(error.code or 0)
    os._exit(1)


class Runner(ABC):
    """Runs a ClientApp for a `LocalGrid`, anywhere.

    The grid calls it from one thread. Each call that was submitted gets one answer, in
    any order: that of `ClientCall.run`, or of `ClientCall.fail` if the call was lost. A
    call that was lost may be run again. The ClientApp may change a call's message and
    context, which the server keeps: what runs must be a copy, such as what pickling
    makes. `load_client_app` loads the ClientApp where it runs.
    """

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another call can be submitted now; always if none is unanswered.

        One call that waits for each that runs keeps the processes busy while the
        server merges.
        """

    @abstractmethod
    def submit(self, call: ClientCall) -> None:
        """Take a call, and do not wait for its answer.

        There is room, and the call's node has no other call under way.
        """

    @abstractmethod
    def collect(self, timeout: float | None) -> list[Answer]:
        """Return answers that have not been returned yet.

        Parameters
        ----------
        timeout : float | None
            Seconds to wait while there is none; ``None`` waits as long as it takes.
            It may return an empty list before they are over.

        Raises
        ------
        RunError
            There will be no more answers.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop, and drop what has not been answered; may be called again."""


class InlineRunner(Runner):
    """Runs each call in the calling process when its answer is asked for.

    One at a time, whichever threads have grids: all draw from the same generators.
    """

    def __init__(self, client_app: ClientAppSource) -> None:
        self._app = load_client_app(client_app)
        self._pickled: bytes | None = None

    @property
    def has_room(self) -> bool:
        """One call at a time: the next one sees what the caller does until then."""
        return self._pickled is None

    def submit(self, call: ClientCall) -> None:
        """Keep the call, as it is now."""
        self._pickled = pickle.dumps(call)

    def collect(self, timeout: float | None) -> list[Answer]:
        """Run the call there is; one that is interrupted is run again the next time."""
        if self._pickled is None:
            return []
        # S301: pickled above. The client must not share memory with the server.
        call: ClientCall = pickle.loads(self._pickled)  # noqa: S301  # bytes of this grid
        with kept_global_generators():  # they are the caller's, too
            answer = call.run(self._app)
        self._pickled = None
        return [answer]

    def close(self) -> None:
        """Drop the call there is."""
        self._pickled = None
