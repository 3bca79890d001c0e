"""The runs of a command side by side, those that are not there yet."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.events import Failed, Skipped
from flwr_asyncdrop.cli.lines import LineDisplay
from flwr_asyncdrop.cli.pool import RunPool, share_out
from flwr_asyncdrop.cli.preflight import refuse_at_once
from flwr_asyncdrop.cli.runs import RunSpec, is_complete
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.readable import counted


class Undone(NamedTuple):
    """How many runs are still missing: they failed, or somebody else does them."""

    failed: int
    skipped: int


def do_missing(
    runs: Sequence[RunSpec],
    jobs: int,
    backend: Backend,
    make: Callable[[int, int], LineDisplay],
) -> Undone:
    """Do the runs that are missing on so many cores; return how many are still so.

    On a Ray cluster the cores are how many runs are side by side. `make` makes what
    shows them.
    """
    missing = [run for run in runs if not is_complete(run)]
    refuse_at_once(missing)
    num_complete = len(runs) - len(missing)
    failed = skipped = 0
    backends = backend.shared(*share_out(jobs, len(missing)))
    with make(len(runs), num_complete) as display:
        if num_complete:
            display.note(
                f"{num_complete} of {counted(len(runs), 'run')} complete already"
            )
        try:
            with RunPool(backends) as pool:
                for run, event in pool.do(missing):
                    display.show(run, event)
                    failed += isinstance(event, Failed)
                    skipped += isinstance(event, Skipped)
        except (KeyboardInterrupt, SystemExit):  # of Ctrl-C, and of SIGTERM
            display.say("interrupted: the same command resumes with what is missing")
            raise
    if failed:
        count = f"{failed} of {counted(len(runs), 'run')} failed"
        display.say(f"{count}: the same command tries again")
    if skipped:
        count = f"{skipped} of {counted(len(runs), 'run')} skipped"
        display.say(f"{count}: the same command does what their processes leave")
    return Undone(failed, skipped)


def choose_among(
    runs: Sequence[RunSpec],
    jobs: int,
    backend: Backend,
    make: Callable[[int, int], LineDisplay],
) -> int:
    """Do as `do_missing` does; return how many have failed.

    RunError if somebody else does some: nobody knows yet how good they are.
    """
    failed, skipped = do_missing(runs, jobs, backend, make)
    if skipped:
        raise RunError(
            f"other processes do {skipped} of the runs to choose among: let them end, "
            "then the same command resumes"
        )
    return failed
