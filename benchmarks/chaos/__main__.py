"""Break runs in every way there is, and print what is left of them.

    python -m benchmarks.chaos
    python -m benchmarks.chaos --part fleet --times 10

JSON lines first, then a table by kind of fault. The files of runs that did not survive
are kept, and where is said.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.chaos.audit import Audit, figures, summed, table
from benchmarks.chaos.fleet import FLEET_RUNS, run_fleet
from benchmarks.chaos.local import LOCAL_RUNS, run_local
from benchmarks.figures import say, show
from scripts.flwr_run import end_with_signals
from scripts.transport import installed_transport


def main() -> int:
    """Run everything; the exit status says whether it survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder that the runs' files go to")
    parser.add_argument("--part", choices=("all", "local", "fleet"), default="all")
    parser.add_argument("--times", type=int, default=1, help="runs of each kind")
    arguments = parser.parse_args()
    if arguments.part != "local":
        installed_transport()  # refuses some versions, and not after minutes
    end_with_signals()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    audits = break_everything(folder, arguments.part, arguments.times)
    results = show({"audit": lambda: figures(audits)})
    print(f"\n{table(summed(audits))}")
    missed = any(figure.verdict == "missed" for figure in results)
    if missed:
        say(f"the files of the runs are in {folder}")
    elif arguments.keep is None:
        shutil.rmtree(folder)
    return int(missed)


def break_everything(folder: Path, part: str = "all", times: int = 1) -> list[Audit]:
    """Do the runs of one part, or all, so many times."""
    local = [partial(run_local, run) for run in LOCAL_RUNS]
    fleet = [partial(run_fleet, run) for run in FLEET_RUNS]
    runs = {"local": local, "fleet": fleet, "all": [*local, *fleet]}[part] * times
    audits: list[Audit] = []
    for number, run in enumerate(runs, start=1):
        name = run.args[0].name
        say(f"run {number} of {len(runs)}: {name}")
        audit = run(folder / f"{name}-{number}")
        outcome = "survived" if audit.survived else f"did not survive: {audit.failure}"
        say(f"{outcome} after {audit.seconds:.0f} s")
        audits.append(audit)
    return audits


if __name__ == "__main__":
    sys.exit(main())
