"""A race in which every run has the same time on its virtual clock."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.experiment import initial_model, load_data, weights_of
from flwr_asyncdrop.app.fleets import build_fleet
from flwr_asyncdrop.app.lr_schedule import updates_per_second
from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.cli.runs import RunSpec, is_complete
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.report.comparison import Outcome
from flwr_asyncdrop.report.runlog import Curve, RunLog
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.target import Target, choose_target

MOST_ROUNDS = 1_000_000
"""Rounds of a run that ends by its time, which it does long before."""


LEAST_SECONDS = 1e-12
"""Of a whole run: what is shorter cannot be divided among the rungs of a search."""


class EqualTime:
    """As long as so many virtual seconds, and as good as the target is reached soon.

    Milestones of the learning rate are where they are in a whole run, in proportion.

    Parameters
    ----------
    seconds : float
        Virtual seconds of a whole run.
    target : str or float
        As of `choose_target`; a share is one of the best candidate of the same rung.
    """

    # Those that are given say how long a run is by default, and end none.
    fixed: Mapping[str, Value] = MappingProxyType({"num-rounds": MOST_ROUNDS})

    def __init__(self, seconds: float, target: str | float) -> None:
        if seconds < LEAST_SECONDS:
            raise ConfigError(
                f"{seconds:g} virtual s are too short for a run: give more with "
                "--within"
            )
        self.seconds = seconds
        self._target = target

    def length(self, config: RunConfig, division: int) -> dict[str, Value]:
        """Return the seconds, and the milestones in seconds."""
        seconds = self.seconds / division
        unit = self.seconds if config.milestones_in_seconds else 1
        places = [at / unit * seconds for at in config.milestones]
        return {
            "max-seconds": float(f"{seconds:.6g}"),
            **self.fixed,
            "lr-milestones": ",".join(f"{place:.6g}s" for place in places),
        }

    def folder(self, number: int, division: int) -> str:
        """Return a name that says the length alone: another budget has the same.

        Another length has another one: it may change when a run resumes, so the run
        there would be taken for one of this length.
        """
        return f"search-{self.seconds / division:.6g}s"

    @property
    def last_folder(self) -> str:
        """The name of the folder of the runs that are compared at the end."""
        return f"final-{self.seconds:.6g}s"

    def target(self, series: Sequence[Series]) -> Target:
        """Return the target of some runs, at least one of them complete."""
        return choose_target(series, self._target, of_all=True)

    def scores(self, runs: Sequence[RunSpec]) -> list[float | None]:
        """Return the share of the time that was left when the target was reached.

        For one that did not reach it, by how much it failed to, a negative number.
        """
        series = read_runs(runs)
        curves = {
            (one.label, seed): curve
            for one in series
            for seed, curve in one.curves.items()
        }
        if all(curve.diverged for curve in curves.values()):
            return [None] * len(runs)
        target = self.target(series)
        found = [curves.get(_key(run)) for run in runs]
        return [
            None
            if curve is None or curve.diverged
            else _score(curve, target, run.config.max_seconds)
            for run, curve in zip(runs, found, strict=True)
        ]


def read_runs(runs: Sequence[RunSpec]) -> list[Series]:
    """Return some runs by candidate; those that are not complete are left out."""
    ordered = sorted(runs, key=lambda run: str(run.folder.parent))
    series = []
    for folder, group in groupby(ordered, key=lambda run: run.folder.parent):
        own = list(group)
        logs: dict[int, RunLog] = {}
        for run in own:
            log = RunFolder(run.folder).log if is_complete(run) else None
            if log is not None and log.curve is not None:
                logs[run.config.seed] = log
        name = algorithm(own[0].config.algo).label()
        series.append(Series(folder.name, name, logs, {}))
    return series


def _key(run: RunSpec) -> tuple[str, int]:
    return run.folder.parent.name, run.config.seed


def _score(curve: Curve, target: Target, seconds: float) -> float:
    arrival = Outcome.of(curve, target).arrival
    if arrival is not None:
        return 1 - min(arrival.time / seconds, 1)
    metric = target.metric
    return metric.goodness(curve.final.value) - metric.goodness(target.value)


def default_seconds(config: RunConfig, devices: int) -> float:
    """Return the virtual seconds that the rounds of a run take if nobody waits.

    Devices train full models, which travel without compression. Four digits.
    """
    in_flight = min(config.in_flight, devices)
    load_data(config)  # which says what is wrong with it
    tensors = weights_of(initial_model(config)).values()
    size = sum(tensor.nbytes for tensor in tensors)
    rate = updates_per_second(
        build_fleet(config)(devices),
        [TaskCost(1.0, size, size)] * in_flight,
        uniform=config.selection == "uniform" and devices > in_flight,
        deadline=config.deadline,
    )
    return float(f"{config.num_rounds * in_flight / rate:.4g}")
