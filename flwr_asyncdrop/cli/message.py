"""What a command says without Rich, whatever the text has in it."""

import logging
import sys
from collections.abc import Callable

from flwr_asyncdrop.cli.streams import unless_nobody_reads
from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.shortage import shortage

_LONGEST = 1000


def tell(text: str) -> None:
    """Write lines to the standard output, if anybody reads there.

    UnwrittenError if they cannot be written.
    """
    with unless_nobody_reads():
        print(text, flush=True)  # noqa: T201


def say(text: str) -> None:
    """Write a line to the standard error."""
    sys.stderr.write(f"asyncdrop: {plain_line(text)}\n")


def plain_line(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one line of characters that are shown, cut in its middle.

    White space becomes blanks, and what cannot be shown its escape.
    """
    half = longest // 2
    short = text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"
    return "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in " ".join(short.split())
    )


class WarningHandler(logging.Handler):
    """Hands warnings and errors on; what is wrong with one is printed, and no more."""

    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.WARNING)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record on."""
        try:
            self._take(record)
        except Exception:
            self.handleError(record)


def reason_of(error: Exception) -> str:
    """Return why a run failed, as its error says it."""
    known = isinstance(error, AsyncDropError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    return shortage(error) or text
