"""The server of the ready app: one run, from its run-config to its files."""

import logging
import math
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from safetensors.torch import save

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import (
    INCIDENTAL,
    IRRELEVANT,
    RunConfig,
    earlier_values,
)
from flwr_asyncdrop.app.end import FilesAtTheEnd
from flwr_asyncdrop.app.evaluation import CentralTest, check_own
from flwr_asyncdrop.app.experiment import (
    initial_model,
    load_data,
    trained_model,
    weights_of,
)
from flwr_asyncdrop.app.fleets import build_fleet, trace_digest
from flwr_asyncdrop.app.flwr_run import (
    devices_of,
    resume_by_flwr_run,
    resume_what_is_there,
)
from flwr_asyncdrop.app.lr_schedule import ExpectedSchedule
from flwr_asyncdrop.app.missed_decays import MissedDecays
from flwr_asyncdrop.app.needless_keys import warn_of_needless
from flwr_asyncdrop.app.run_folder import EarlierFiles, RunFolder, output_dir
from flwr_asyncdrop.app.trackers import trackers_of
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.checkpoint.files import apart, check_types
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.selection import Stratified, Uniform
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_lines import TRACE_DIGEST
from flwr_asyncdrop.observers.prometheus import PrometheusMetrics
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.storage.whole import write_whole
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy
from flwr_asyncdrop.versions import PACKAGE, version_of

logger = logging.getLogger("flwr.asyncdrop")

_SELECTIONS = {"stratified": Stratified, "uniform": Uniform}


def build_strategy(
    config: RunConfig,
    callbacks: Sequence[Callback] = (),
    checkpointer: Checkpointer | None = None,
    schedule: ExpectedSchedule | None = None,
) -> AsyncStrategy:
    """Build the strategy that a run-config describes."""
    fleet = build_fleet(config)
    data, model = load_data(config), initial_model(config)
    check_own(config)
    has_own = config.algorithm.checked_selection() is not None
    return AsyncStrategy(
        model,
        data.example_inputs(),
        algorithm=config.algorithm,
        scope=config.scope,
        in_flight=config.in_flight,
        fleet=fleet if config.clock == "virtual" else None,
        codec=config.codec,
        duration=config.duration,
        selection=None if has_own else _SELECTIONS[config.selection](),
        schedule=schedule or ExpectedSchedule(config),
        max_examples=config.max_examples,
        outlier_factor=config.outlier_factor,
        faults=FaultPolicy(config.deadline, config.late, config.quarantine_after),
        probe=config.clock == "wall",
        queue_ahead=config.queue_ahead,
        seed=config.seed,
        max_seconds=config.max_seconds or math.inf,
        min_available_nodes=1,
        fraction_evaluate=0.0,
        log_rounds=False,
        evaluate_every=config.evaluate_every,
        callbacks=callbacks,
        checkpointer=checkpointer,
    )


def run_experiment(
    grid: Grid,
    config: RunConfig,
    callbacks: Sequence[Callback] = (),
    resume_command: str = "",
    say: Callable[[str], None] = logger.warning,
) -> Path:
    """Run what `config` describes on the nodes of `grid`, whose clients have it too.

    Return the folder with ``history.jsonl``, ``model.safetensors`` and ``run.png``. The
    log names `resume_command`, by default the ``flwr run`` that resumes the run. `say`
    tells what the end of the run waits for, if its files cannot be written.
    """
    torch.set_num_threads(config.threads)
    with output_dir(config) as out:
        _run_in(out, grid, config, callbacks, resume_command, say)
    return out


def _run_in(
    out: Path,
    grid: Grid,
    config: RunConfig,
    callbacks: Sequence[Callback],
    resume_command: str,
    say: Callable[[str], None],
) -> None:
    if config.resume and not out.is_dir():
        raise CheckpointError(f"{out} is no folder: nothing can be resumed from there")

    def again() -> str:
        return resume_command or resume_by_flwr_run(config, out, devices_of(out))

    with FilesAtTheEnd(out, say, again) as files:
        folder = RunFolder(out)
        over = _resumes_all(config, out) and folder.is_trained
        if not over:
            if not (config.resume or config.overwrite):
                folder.refuse_what_is_there(
                    resume_command or resume_what_is_there(out, config)
                )
            over = _train(grid, config, files, callbacks, resume_command)
        files.finish(over=over)


def _train(
    grid: Grid,
    config: RunConfig,
    files: FilesAtTheEnd,
    callbacks: Sequence[Callback],
    resume_command: str,
) -> bool:
    """Run, and write history and model; return whether all rounds were done."""
    folder = RunFolder(files.folder)
    settings = _portable(config)
    told = {"algorithm": config.algo, "config": settings}
    history = HistoryWriter(
        folder.history,
        {**told, **({"defaults": config.defaults} if config.defaults else {})},
        _machine(),
        overwrite=config.overwrite,
        every=config.history_every,
    )
    test = CentralTest(config)
    checkpointer = checkpointer_of(config, folder.path, resume_command)
    earlier = EarlierFiles(folder)
    watching = [*_monitors(config), *trackers_of(config, settings, folder.path)]
    # Those first that may refuse to begin: after them files are replaced.
    schedule = ExpectedSchedule(config)
    missed = MissedDecays(config, schedule)
    callbacks = [*watching, earlier, history, test, missed, *callbacks]
    strategy = build_strategy(config, callbacks, checkpointer, schedule)
    warn_of_needless(config, strategy.plan)
    weights = weights_of(initial_model(config))
    check_types(weights)
    try:
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(weights),
            num_rounds=config.num_rounds,
            timeout=config.timeout,
            train_config=ConfigRecord({"lr": config.lr}),
            evaluate_fn=test,
        )
        files.write(folder.history, history.flush)
    finally:
        history.close()
    trained = trained_model(config, wire.from_record(result.arrays))
    model = save(apart(weights_of(trained)), {"algorithm": config.algo})
    files.write(folder.model, lambda: write_whole(folder.model, model))
    return not history.ended_early


def _portable(config: RunConfig) -> dict[str, object]:
    """Return the configuration without what depends on the machine."""
    return {
        key: value for key, value in config.settings.items() if key not in INCIDENTAL
    } | {"trace": Path(config.trace).name, **trace_digest(config)}


def _monitors(config: RunConfig) -> list[Callback]:
    if config.metrics_port == 0:
        return []
    shown = ("dataset", "model", "num_rounds", "in_flight")
    run = {name: str(getattr(config, name)) for name in shown}
    run["algorithm"] = config.algo
    return [PrometheusMetrics(config.metrics_port, config.metrics_address, run=run)]


def _machine() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        PACKAGE: version_of(PACKAGE),
        "flwr": version_of("flwr"),
        "torch": torch.__version__,
        "gpu": torch.cuda.is_available(),
    }


def checkpointer_of(config: RunConfig, out: Path, command: str) -> Checkpointer | None:
    """Return the checkpointer of a run in folder `out`; None if it saves nothing.

    `command` resumes the run, "" for the ``flwr run`` that does.
    """
    if config.checkpoint_every == 0:
        return None
    return Checkpointer(
        out,
        resume=Path(config.resume).expanduser() if config.resume else None,
        every=config.checkpoint_every,
        keep=config.keep_checkpoints,
        settings={**config.settings, **trace_digest(config)},
        incidental=IRRELEVANT,
        digests={"trace": TRACE_DIGEST},
        defaults={**earlier_values(config), **trace_digest(config)},
        command=command or partial(resume_by_flwr_run, config, out),
        overwrite=config.overwrite,
    )


def _resumes_all(config: RunConfig, out: Path) -> bool:
    """Return whether a run resumes from its newest checkpoint, not from one by name."""
    return bool(config.resume) and Path(config.resume).expanduser().absolute() == out
