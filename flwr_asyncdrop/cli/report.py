"""``asyncdrop report``: what the runs of some folders came to."""

import argparse
import math
from collections.abc import Sequence

from flwr_asyncdrop.cli.console import make_console, print_line
from flwr_asyncdrop.cli.flags import folder
from flwr_asyncdrop.parameters import read_number
from flwr_asyncdrop.paths import make_output_folder
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.series import read_series
from flwr_asyncdrop.report.terminal import TerminalTable
from flwr_asyncdrop.report.write import write_compared


def add_arguments(parser: argparse.ArgumentParser, _: Sequence[str]) -> None:
    """Describe the command."""
    parser.description = (
        "Report on the runs of a comparison: the table, and a page that "
        "has it with all figures."
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=folder,
        metavar="DIR",
        help="folder of a comparison; several are taken together",
    )
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="where the report goes (default: 'report' in the first folder)",
    )
    parser.add_argument(
        "--target",
        type=_target,
        default="auto",
        metavar="ACCURACY",
        help="accuracy to which time and bytes are counted: a number; auto, the "
        "paper's rule, the second-lowest maximum of the baselines; or 0.95best, that "
        "share of the highest final accuracy of a baseline (default: auto)",
    )
    parser.add_argument(
        "--reference",
        metavar="LABEL",
        help="what the overheads are relative to (default: hetero-asyncdrop)",
    )
    parser.add_argument(
        "--paper",
        action="store_true",
        help="also figures as PDF and SVG, 3.3 inches wide, and a LaTeX table, in the "
        "folder 'paper' of the report",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table, and write the page."""
    out = arguments.out or arguments.folders[0] / "report"
    if arguments.out:
        make_output_folder(out, "out")
    target, reference = arguments.target, arguments.reference
    console = make_console()
    # Once: others may be writing them.
    series = read_series(arguments.folders)
    comparison = compare(series, target, reference)
    console.print(TerminalTable(comparison))
    page = write_compared(
        series, comparison, arguments.folders, out, paper=arguments.paper
    )
    print_line(str(page), console)
    return 0


def _target(text: str) -> str | float:
    try:
        target = read_number(text)
    except ValueError:
        return text
    if not math.isfinite(target):
        raise argparse.ArgumentTypeError(f"{text!r} must be finite")
    return target
