"""``asyncdrop doctor``: whether this machine has what a run needs."""

import argparse
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flwr_asyncdrop.cli.display import make_console
from flwr_asyncdrop.cli.flags import folder
from flwr_asyncdrop.doctor import Finding, examine

_FAILED = 1
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def add_arguments(parser: argparse.ArgumentParser, _: Sequence[str]) -> None:
    """Describe the command."""
    parser.description = (
        "Look at versions, GPU, data sets, disk, memory, ports and "
        "Flower's variables. The exit status is 1 if there is a problem."
    )
    parser.add_argument(
        "--data-dir",
        type=folder,
        metavar="DIR",
        help="where to look for data sets (default: do not look)",
    )
    parser.add_argument(
        "--out",
        type=folder,
        default=folder("runs"),
        metavar="DIR",
        help="where the files of runs are to go (default: ./runs)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what was found."""
    findings = list(examine(arguments.out, arguments.data_dir))
    print_findings(make_console(), findings)
    return _FAILED if any(each.level == "problem" for each in findings) else 0


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print the findings with their fixes, and count them."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for each in findings:
        level = Text(each.level, style=_STYLES[each.level])
        table.add_row(level, Text(each.name), Text(each.found))
        if each.fix:
            table.add_row("", "", Text(f"-> {each.fix}", style="bold"))
    console.print(table)
    count = Counter(each.level for each in findings)
    line = f"problems: {count['problem']}, warnings: {count['warning']}"
    console.print(line, highlight=False)
