"""What Flower logs of a ServerApp that has failed.

Flower logs the traceback of whatever a ServerApp raises, then an exit code with a link.
An error that says in one line what is wrong and what to do needs no traceback, and that
line should be the last. Seen in flwr 1.34 to 1.42.
"""

import logging

from flwr_asyncdrop.exceptions import AsyncDropError

_LOGGER = "flwr"
_EXIT = "Exit Code:"
_TRACEBACK = "Traceback (most recent call last)"


class LineLast(logging.Filter):
    """Leaves out the tracebacks of an error, and says it once more at the very end."""

    def __init__(self, error: AsyncDropError) -> None:
        super().__init__()
        self.line = str(error)

    def filter(self, record: logging.LogRecord) -> bool:
        """Change what Flower logs of the error."""
        message = record.getMessage()
        if message.startswith(_TRACEBACK):
            return self.line not in message
        if record.exc_info and self._is_of(record.exc_info[1]):
            record.exc_info = record.exc_text = None
        if message.startswith(_EXIT):
            record.msg, record.args = f"{message}\n\n{self.line}", None
        return True

    def _is_of(self, error: BaseException | None) -> bool:
        while error is not None:
            if str(error) == self.line:
                return True
            error = error.__cause__ or error.__context__
        return False


def end_with_line(error: AsyncDropError) -> None:
    """Let what Flower logs from now on end with the line of an error."""
    logging.getLogger(_LOGGER).addFilter(LineLast(error))
