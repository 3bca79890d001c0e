"""The standard streams of a command: closed ones, full disks, and nobody who reads."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
# Nobody reads, or the terminal was closed.
_NO_READER = (errno.EPIPE, errno.EIO)


class UnwrittenError(OSError):
    """The standard output takes no more of what a command has to say."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)

    def __str__(self) -> str:
        """Say what to do."""
        return (
            f"the standard output cannot be written ({self.strerror}): let it go to "
            "where there is room"
        )


def open_what_is_closed() -> None:
    """Open the standard streams that are closed, as after ``2>&-``, on nothing.

    The next file that is opened would have their numbers otherwise, and get what a
    library prints. Processes that are started have them, too.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:  # pragma: no cover  # the lowest free one is taken
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


@contextmanager
def output_in_full() -> Iterator[None]:
    """Raise UnwrittenError if not all that the block prints can be written.

    An error of the block itself is more important.
    """
    try:
        yield
    except SystemExit as end:
        if not end.code:  # e.g. after the help
            flush_output()
        raise
    except BaseException:
        try:
            flush_output()
        except UnwrittenError:
            print_no_more()
        raise
    else:
        flush_output()


def flush_output() -> None:
    """Write what is left of the standard output, if anybody reads there."""
    with unless_nobody_reads():
        sys.stdout.flush()


def print_no_more(stream: TextIO | None = None) -> None:
    """Let what is still printed on a stream, the standard output, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # Python flushes what is left when it ends.
    os.dup2(nowhere, (stream or sys.stdout).fileno())
    os.close(nowhere)


@contextmanager
def unless_nobody_reads(then: Callable[[], None] = print_no_more) -> Iterator[None]:
    """Print in the block; if nobody reads any more, go on with `then`.

    UnwrittenError if it cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_READER:
            raise UnwrittenError(error) from error
        then()
