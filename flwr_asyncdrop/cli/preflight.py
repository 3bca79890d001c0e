"""What can be known to fail is refused before the first run starts, once for all."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.data import check_dataset
from flwr_asyncdrop.app.experiment import check_fleet, initial_model, load_data
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.app.trackers import trackers_of
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.exceptions import AsyncDropError, ConfigError, DataError
from flwr_asyncdrop.fleet.traces import read_trace
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.references import is_reference, load_reference
from flwr_asyncdrop.report.files import HISTORY
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import check_together


def check_inputs(settings: Iterable[Mapping[str, Value]], devices: int) -> None:
    """Raise what is wrong with the files, fleet and trackers of some runs' settings.

    Data sets are looked for, and not read: that takes seconds.
    """
    seen: set[tuple[object, ...]] = set()
    for each in settings:
        config = RunConfig.parse(each)
        # One that resumes has begun so: its devices may be real, and have left.
        too_many = config.is_given("in-flight") and config.in_flight > devices
        if too_many and not config.resume:
            raise ConfigError(
                f"in-flight={config.in_flight} of {counted(devices, 'device')} cannot "
                "train at once: give more --devices, or a smaller --in-flight"
            )
        files = (config.dataset, config.data_path, config.download, config.trace)
        if (named := (*files, config.model, config.track)) not in seen:
            seen.add(named)
            _check_files(config)
            trackers_of(config, {}, Path())  # which are made, and do nothing yet


def refuse_at_once(runs: Sequence[RunSpec]) -> None:
    """Raise what the first run raises when it is put together, if all others do.

    Seeds make no difference to that. A comparison of which some runs are possible has
    the others fail one by one.
    """
    refusals: list[AsyncDropError] = []
    for run in {run.folder.parent: run for run in reversed(runs)}.values():
        # As the run itself: where others compute, more threads wait for each other.
        torch.set_num_threads(run.config.threads)
        try:
            build_strategy(run.config)
            check_fleet(run.config, run.devices)
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


def refuse_no_table(runs: Sequence[RunSpec], out: Path) -> None:
    """Raise a ConfigError if no table can have these runs and others in their folder.

    Histories at their own places are looked at elsewhere.
    """
    planned = {}
    for run in runs:
        config = run.config
        first = {
            "seed": config.seed,
            "devices": run.devices,
            "algorithm": type(config.algorithm).label(),
            "config": config.settings,
        }
        planned[run.folder / HISTORY] = RunLog.planned(first)
    try:
        check_together(out, planned)
    except DataError as error:
        raise ConfigError(
            f"these runs and those in {out} would have no table ({error}): choose "
            "another --out"
        ) from error


def _check_files(config: RunConfig) -> None:
    if config.trace:
        read_trace(Path(config.trace).expanduser().absolute(), config.local_steps)
    if is_reference(config.dataset):
        load_reference("dataset", config.dataset)
    elif not config.download:
        check_dataset(config.dataset, config.data_path)
    if is_reference(config.model):
        load_reference("model", config.model)
