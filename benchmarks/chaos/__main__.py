"""Break runs in every way there is, and print what is left of them.

    python -m benchmarks.chaos

JSON lines first, then a table by kind of fault.
"""

import argparse
import logging
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.chaos.audit import Audit, figures, table
from benchmarks.chaos.fleet import FLEET_RUNS, run_fleet
from benchmarks.chaos.local import LOCAL_RUNS, run_local
from benchmarks.figures import say, show


def main() -> int:
    """Run everything; the exit status says whether it survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder that the runs' files go to")
    parser.add_argument("--part", choices=("all", "local", "fleet"), default="all")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        audits = break_everything(arguments.keep or Path(made), arguments.part)
    results = show({"audit": lambda: figures(audits)})
    print(f"\n{table(audits)}")
    return int(any(figure.verdict == "missed" for figure in results))


def break_everything(folder: Path, part: str = "all") -> list[Audit]:
    """Do the runs of one part, or all."""
    runs = [partial(run_local, run, folder / run.name) for run in LOCAL_RUNS]
    runs_of_fleets = [partial(run_fleet, run, folder / run.name) for run in FLEET_RUNS]
    chosen = {"local": runs, "fleet": runs_of_fleets, "all": [*runs, *runs_of_fleets]}
    audits = []
    for number, run in enumerate(chosen[part], start=1):
        say(f"run {number} of {len(chosen[part])}: {run.args[0].name}")
        audits.append(run())
    return audits


if __name__ == "__main__":
    sys.exit(main())
