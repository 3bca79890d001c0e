"""One call of a ClientApp, and what came of it."""

import logging
import traceback
from dataclasses import dataclass

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from flwr_asyncdrop.flower_internals.identity import ErrorCode
from flwr_asyncdrop.simulation.client_app import one_line

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """The reply to a call, and the node's context after it."""

    reply: Message
    context: Context


@dataclass(frozen=True)
class ClientCall:
    """A message for a node, and the node's context before it. It pickles.

    Attributes
    ----------
    message : Message
        What the ClientApp is called with; ``message.metadata.dst_node_id`` is the node.
    context : Context
        The node's: its config, and the state that its calls before have left.
    """

    message: Message
    context: Context

    def run(self, app: ClientApp) -> Answer:
        """Call the ClientApp.

        Parameters
        ----------
        app : ClientApp
            It may change message and context: run a copy of what was submitted.

        Returns
        -------
        Answer
            The reply, and the context as the ClientApp left it. Whatever it raises
            becomes an Error reply, and the context is as it was changed until then.
        """
        try:
            reply = app(self.message, self.context)
        except (Exception, SystemExit) as error:
            _log.warning("A ClientApp raised:\n%s", traceback.format_exc())
            return self.fail(one_line(error))
        fault = self._fault(reply)
        return self.fail(fault) if fault else Answer(reply, self.context)

    def fail(self, reason: str, *, crashed: bool = False) -> Answer:
        """Answer with an Error reply; the context is as it was.

        Parameters
        ----------
        reason : str
            What happened, in one line.
        crashed : bool
            Whether what ran the ClientApp was lost: a process, or a machine. Else the
            ClientApp itself is at fault.
        """
        code = (
            ErrorCode.CLIENT_APP_CRASHED
            if crashed
            else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        )
        return Answer(Message(Error(code, reason), reply_to=self.message), self.context)

    def _fault(self, reply: object) -> str | None:
        if not isinstance(reply, Message):
            return f"The ClientApp returned a {type(reply).__name__}, not a Message."
        if reply.metadata.reply_to_message_id != self.message.metadata.message_id:
            return (
                "The ClientApp's reply answers another message; "
                "make it with Message(content, reply_to=message)."
            )
        return None
