"""``asyncdrop doctor``: whether this machine has what a run needs."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flwr_asyncdrop.cli.message import tell
from flwr_asyncdrop.doctor import Finding, examine

if TYPE_CHECKING:
    from rich.console import Console

_FAILED = 1
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def add_arguments(parser: argparse.ArgumentParser, _: Sequence[str]) -> None:
    """Describe the command."""
    parser.description = (
        "Look at versions, GPU, data sets, disk, memory, ports and "
        "Flower's variables, and on demand at a Ray cluster. The exit status is 1 if "
        "there is a problem."
    )
    parser.add_argument(
        "--data-dir",
        type=_folder,
        metavar="DIR",
        help="where to look for data sets (default: do not look)",
    )
    parser.add_argument(
        "--out",
        type=_folder,
        default=_folder("runs"),
        metavar="DIR",
        help="where the files of runs are to go (default: ./runs)",
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        type=_address,
        metavar="HOST:PORT",
        help="look at a Ray cluster too: at its head's address, or without one at the "
        "cluster that this machine is a node of",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what was found."""
    findings = list(examine(arguments.out, arguments.data_dir, arguments.ray))
    try:
        from flwr_asyncdrop.cli.console import make_console
    except ModuleNotFoundError:  # rich
        print_plain(findings)
    else:
        print_findings(make_console(), findings)
    return _FAILED if any(each.level == "problem" for each in findings) else 0


def print_findings(console: "Console", findings: Sequence[Finding]) -> None:
    """Print the findings with their fixes, and count them."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for each in findings:
        level = Text(each.level, style=_STYLES[each.level])
        table.add_row(level, Text(each.name), Text(each.found))
        if each.fix:
            table.add_row("", "", Text(f"-> {each.fix}", style="bold"))
    console.print(table)
    console.print(_counts(findings), highlight=False)


def print_plain(findings: Sequence[Finding]) -> None:
    """Print the same without rich."""
    for each in findings:
        fix = f" -> {each.fix}" if each.fix else ""
        tell(f"{each.level:<8} {each.name}: {each.found}{fix}")
    tell(_counts(findings))


def _counts(findings: Sequence[Finding]) -> str:
    count = Counter(each.level for each in findings)
    return f"problems: {count['problem']}, warnings: {count['warning']}"


def _folder(text: str) -> Path:
    """Read a folder as the other commands do, if what they need is there."""
    try:
        from flwr_asyncdrop.cli.flags import folder
    except ModuleNotFoundError:
        return Path(text).expanduser().absolute()
    return folder(text)


def _address(text: str) -> str:
    """Read an address as the other commands do, if what they need is there."""
    try:
        from flwr_asyncdrop.simulation.ray.cluster import problem_of_address
    except ModuleNotFoundError:
        return text
    if problem := problem_of_address(text):
        raise argparse.ArgumentTypeError(problem)
    return text
