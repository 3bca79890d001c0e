"""The ids of spans: those of a message, or random ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from secrets import randbits

from flwr_asyncdrop.wire import trace_ids


class SpanIds:
    """OpenTelemetry's ``IdGenerator``; no seeded generator is touched."""

    def __init__(self) -> None:
        self._given: tuple[int, int] | None = None

    @contextmanager
    def of(self, message_id: str) -> Iterator[None]:
        """Give a trace that begins in this context the ids of its message."""
        self._given = trace_ids(message_id)
        try:
            yield
        finally:
            self._given = None

    def generate_trace_id(self) -> int:
        """Return the id of a trace, not 0."""
        return (self._given[0] if self._given else randbits(128)) or 1

    def generate_span_id(self) -> int:
        """Return the id of a span, not 0."""
        return (self._given[1] if self._given else randbits(64)) or 1

    def is_trace_id_random(self) -> bool:
        """Return whether all bits of the ids of traces are as good as random."""
        return True
