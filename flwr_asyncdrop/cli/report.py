"""``asyncdrop report``: what the runs of some folders came to."""

import argparse
import math
from collections.abc import Sequence

from flwr_asyncdrop.cli.console import make_console, print_line
from flwr_asyncdrop.cli.flags import folder
from flwr_asyncdrop.parameters import read_number
from flwr_asyncdrop.paths import make_output_folder
from flwr_asyncdrop.report import comparison_table, write_report


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
    console.print(comparison_table(arguments.folders, target, reference))
    page = write_report(
        arguments.folders,
        out,
        target=target,
        reference=reference,
        paper=arguments.paper,
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
