"""Where commands print: as wide as a page in a file, and never the end of a run."""

import os
import sys

from rich.console import Console

_WIDTH_OF_FILES = 120


class LastingConsole(Console):
    """Prints into nothing once nobody reads any more, as after ``| head``.

    Rich would end the process, and so the run that it shows.
    """

    def on_broken_pipe(self) -> None:
        """Print no more."""
        self.quiet = True
        # Python flushes what is left when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def make_console() -> Console:
    """Return the console of this process; a file has more width than rich assumes."""
    console = LastingConsole()
    return console if console.is_terminal else LastingConsole(width=_WIDTH_OF_FILES)


def print_line(line: str, console: Console) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
