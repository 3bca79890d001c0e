"""Where commands print: as wide as a page in a file, and never the end of a run."""

from contextlib import suppress

from rich.console import Console

from flwr_asyncdrop.cli.streams import print_no_more, unless_nobody_reads

_WIDTH_OF_FILES = 120


class LastingConsole(Console):
    """Prints into nothing once nobody reads any more.

    That is after ``| head``, or when the terminal was closed. Rich would end the
    process, and so the run that it shows.
    """

    def _check_buffer(self) -> None:
        with unless_nobody_reads(self.on_broken_pipe):
            super()._check_buffer()

    def on_broken_pipe(self) -> None:
        """Print no more."""
        self.quiet = True
        print_no_more()


def make_console() -> Console:
    """Return the console of this process; a file has more width than rich assumes."""
    console = LastingConsole()
    return console if console.is_terminal else LastingConsole(width=_WIDTH_OF_FILES)


def print_line(line: str, console: Console) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_if_possible(line: str, console: Console) -> None:
    """Print a line as it is, if the disk or pipe that it goes to takes it."""
    with suppress(OSError):
        print_line(line, console)
