"""What shows how far the runs of a command are."""

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console

from flwr_asyncdrop.cli.bars import BarDisplay
from flwr_asyncdrop.cli.lines import LineDisplay, QuietDisplay
from flwr_asyncdrop.cli.message import WarningHandler


def make_display(
    console: Console, num_runs: int = 1, num_complete: int = 0, *, quiet: bool = False
) -> LineDisplay:
    """Return the display that suits the console, or shows only what went wrong.

    A terminal that cannot move its cursor, as ``TERM=dumb`` says, gets lines.
    """
    if quiet:
        return QuietDisplay(console, num_runs, num_complete)
    has_bars = console.is_terminal and not console.is_dumb_terminal
    kind = BarDisplay if has_bars else LineDisplay
    return kind(console, num_runs, num_complete)


def displays(
    arguments: argparse.Namespace, console: Console
) -> Callable[[int, int], LineDisplay]:
    """Return what makes a display for some runs, of which some are complete."""
    return partial(make_display, console, quiet=arguments.quiet)


@contextmanager
def warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Let Flower's logger say its warnings here, and nothing else anywhere.

    Its own handler writes to the terminal, between the lines of a display.
    """
    logger = logging.getLogger("flwr")
    handlers = logger.handlers[:]
    handler = WarningHandler(
        lambda record: say(f"{record.levelname.lower()}: {record.getMessage()}")
    )
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = handlers
