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
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.chaos.audit import Audit, figures, summed, table
from benchmarks.chaos.fleet import FLEET_RUNS, FleetRun, run_fleet
from benchmarks.chaos.local import LOCAL_RUNS, LocalRun, run_local
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
    if arguments.times < 1:
        parser.error(f"--times {arguments.times}: nothing would be broken")
    if arguments.part != "local":
        installed_transport()  # refuses some versions, and not after minutes
    end_with_signals()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    runs = runs_of(arguments.part, arguments.times)
    audits = break_everything(folder, runs)
    results = show({"audit": lambda: figures(audits, planned_faults(runs))})
    print(f"\n{table(summed(audits))}")
    missed = any(figure.verdict == "missed" for figure in results)
    if missed:
        say(f"the files of the runs are in {folder}")
    elif arguments.keep is None:
        shutil.rmtree(folder)
    return int(missed)


def runs_of(part: str = "all", times: int = 1) -> list[LocalRun | FleetRun]:
    """Return the runs of one part, or of all, so many times."""
    parts: dict[str, Sequence[LocalRun | FleetRun]] = {
        "local": LOCAL_RUNS,
        "fleet": FLEET_RUNS,
        "all": (*LOCAL_RUNS, *FLEET_RUNS),
    }
    return [*parts[part]] * times


def planned_faults(runs: Iterable[LocalRun | FleetRun]) -> int:
    """Return how many faults tasks and messages meet in runs that come to their end.

    Those of processes come on top: a run may end before a worker is killed.
    """
    return sum(sum(run.clients.values()) + sum(run.messages.values()) for run in runs)


def break_everything(folder: Path, runs: Sequence[LocalRun | FleetRun]) -> list[Audit]:
    """Do runs, and audit each."""
    audits: list[Audit] = []
    for number, run in enumerate(runs, start=1):
        say(f"run {number} of {len(runs)}: {run.name}")
        own = folder / f"{run.name}-{number}"
        audit = (
            run_local(run, own) if isinstance(run, LocalRun) else run_fleet(run, own)
        )
        outcome = "survived" if audit.survived else f"did not survive: {audit.failure}"
        say(f"{outcome} after {audit.seconds:.0f} s")
        audits.append(audit)
    return audits


if __name__ == "__main__":
    sys.exit(main())
