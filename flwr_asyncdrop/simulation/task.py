"""A task of the local grid, and how a ClientApp answers it."""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.flower_internals.identity import ErrorCode

ClientAppSource = str | Callable[[], ClientApp]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A message for a node, and the node's context before it."""

    message: Message
    context: Context


@dataclass(frozen=True)
class Answer:
    """The reply to a task, and the node's context after it."""

    reply: Message
    context: Context


def load_client_app(source: ClientAppSource) -> ClientApp:
    """Load the ClientApp that ``source`` names or makes.

    Parameters
    ----------
    source : str | Callable[[], ClientApp]
        ``"module:attribute"``, or a function without arguments that returns it.

    Raises
    ------
    ConfigError
        There is no ClientApp to be had from ``source``.
    """
    try:
        app = _resolve(source) if isinstance(source, str) else source()
    except Exception as error:
        raise ConfigError(
            f"The ClientApp {source!r} cannot be loaded: {_describe(error)}; "
            'give an importable "module:attribute", or a function that returns it.'
        ) from error
    if not isinstance(app, ClientApp):
        raise ConfigError(
            f"{source!r} gives a {type(app).__name__}, not a ClientApp; "
            'give "module:attribute" of a ClientApp, or a function that returns one.'
        )
    return app


def answer(app: ClientApp, task: Task) -> Answer:
    """Run ``app`` on ``task``; whatever it raises becomes an Error reply.

    Parameters
    ----------
    app : ClientApp
        Called with the task's message and context, which it may change.
    task : Task
        What to do.

    Returns
    -------
    Answer
        The reply, and the context as the ClientApp left it.
    """
    try:
        reply = app(task.message, task.context)
    except (Exception, SystemExit) as error:
        _log.warning("A ClientApp raised:\n%s", traceback.format_exc())
        return failure(task, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, _describe(error))
    if fault := _fault(reply, task.message):
        return failure(task, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, fault)
    return Answer(reply, task.context)


def failure(task: Task, code: int, reason: str) -> Answer:
    """Answer ``task`` with an Error reply.

    Parameters
    ----------
    task : Task
        The task that failed.
    code : int
        One of Flower's error codes.
    reason : str
        One line: what happened.
    """
    reply = Message(Error(code, reason), reply_to=task.message)
    return Answer(reply, task.context)


def _resolve(reference: str) -> object:
    module, _, path = reference.partition(":")
    found: object = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _fault(reply: object, message: Message) -> str | None:
    if not isinstance(reply, Message):
        return f"The ClientApp returned a {type(reply).__name__}, not a Message."
    if reply.metadata.reply_to_message_id != message.metadata.message_id:
        return (
            "The ClientApp's reply answers another message; "
            "make it with Message(content, reply_to=message)."
        )
    return None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
