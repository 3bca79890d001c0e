"""What every run of a comparison would refuse is said once, before the first."""

from collections.abc import Sequence

from flwr_asyncdrop.app.experiment import initial_model, load_data
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.exceptions import AsyncDropError


def refuse_at_once(runs: Sequence[RunSpec]) -> None:
    """Raise what the first run raises when it is put together, if all others do.

    Seeds make no difference to that. A comparison of which some runs are possible has
    the others fail one by one.
    """
    refusals: list[AsyncDropError] = []
    for run in {run.folder.parent: run for run in reversed(runs)}.values():
        try:
            build_strategy(run.config)
        except AsyncDropError as error:
            refusals.append(error)
        else:
            refusals.clear()
            break
    # Each run loads its data in a process of its own.
    load_data.cache_clear()
    initial_model.cache_clear()
    if refusals:
        raise refusals[-1]
