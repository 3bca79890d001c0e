"""The trace of a task: both ends know its ids, as they know the message's id."""

import re

from flwr.app import Message

# What Flower's SuperLink calls a message: the SHA-256 of what it carries.
_DIGEST = re.compile(r"[0-9a-f]{64}")


def trace_ids(message_id: str) -> tuple[int, int] | None:
    """Return the ids of the trace and of the span of a task from its message's id.

    None if the id is not one of a SuperLink, which no other message has.
    """
    if _DIGEST.fullmatch(message_id) is None:
        return None
    return int(message_id[:32], 16), int(message_id[32:48], 16)


def traceparent(message: Message) -> str:
    """Return the W3C ``traceparent`` of the task that a client was sent.

    It is that of the span that `OpenTelemetryTracing` makes of the task on the server.
    Nothing travels for it: it is part of the message's id, which both ends know.

    Returns
    -------
    str
        ``"00-TRACE-SPAN-01"``, or ``""`` in a simulation, whose messages have other
        ids.
    """
    ids = trace_ids(message.metadata.message_id)
    return "" if ids is None else f"00-{ids[0]:032x}-{ids[1]:016x}-01"
