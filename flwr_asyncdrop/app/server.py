"""The server of the ready app: one run, from its run-config to its files."""

import logging
import math
import platform
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from safetensors.torch import save_file

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import INCIDENTAL, IRRELEVANT, LEFT_OUT, RunConfig
from flwr_asyncdrop.app.evaluation import CentralTest
from flwr_asyncdrop.app.experiment import initial_model, load_data, trained_model
from flwr_asyncdrop.app.fleets import build_fleet
from flwr_asyncdrop.app.lr_schedule import expected_schedule
from flwr_asyncdrop.checkpoint import Checkpointer, run_folder
from flwr_asyncdrop.exceptions import ConfigError, MissingExtraError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.selection import Stratified, Uniform
from flwr_asyncdrop.observers.history import HistoryWriter, read_history
from flwr_asyncdrop.observers.prometheus import PrometheusMetrics
from flwr_asyncdrop.paths import make_output_folder
from flwr_asyncdrop.report import draw_run, summarise
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy

logger = logging.getLogger("flwr.asyncdrop")

_DEFAULTS = RunConfig().settings
_SELECTIONS = {"stratified": Stratified, "uniform": Uniform}


def build_strategy(
    config: RunConfig,
    callbacks: Sequence[Callback] = (),
    checkpointer: Checkpointer | None = None,
) -> AsyncStrategy:
    """Build the strategy that a run-config describes."""
    fleet = build_fleet(config)
    data, model = load_data(config), initial_model(config)
    return AsyncStrategy(
        model,
        data.example_inputs(),
        algorithm=config.algorithm,
        scope=config.scope,
        in_flight=config.in_flight,
        fleet=fleet if config.clock == "virtual" else None,
        duration=config.duration,
        selection=_SELECTIONS[config.selection](),
        schedule=partial(expected_schedule, config),
        max_examples=config.max_examples,
        faults=FaultPolicy(config.deadline, config.late, config.quarantine_after),
        probe=config.clock == "wall",
        queue_ahead=config.queue_ahead,
        seed=config.seed,
        max_seconds=config.max_seconds or math.inf,
        min_available_nodes=1,
        evaluate_every=config.evaluate_every,
        callbacks=callbacks,
        checkpointer=checkpointer,
    )


def run_experiment(
    grid: Grid,
    config: RunConfig,
    callbacks: Sequence[Callback] = (),
    resume_command: str = "",
) -> Path:
    """Run what `config` describes on the nodes of `grid`, whose clients have it too.

    Return the folder with ``history.jsonl``, ``model.safetensors`` and ``run.png``. The
    log names `resume_command`, by default the ``flwr run`` that resumes the run.
    """
    if config.resume and config.algorithm.keeps_client_state:
        raise ConfigError(
            f"algo={config.algo!r} keeps state on its clients, which no checkpoint "
            "has: start the run again without resume"
        )
    torch.set_num_threads(config.threads)
    out = output_dir(config)
    history = HistoryWriter(
        out / "history.jsonl",
        {"algorithm": config.algo, "config": _portable(config)},
        _machine(),
    )
    test = CentralTest(config)
    checkpointer = checkpointer_of(config, out, resume_command)
    callbacks = [history, test, *callbacks, *_monitors(config)]
    strategy = build_strategy(config, callbacks, checkpointer)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial_model(config).state_dict()),
        num_rounds=config.num_rounds,
        timeout=config.timeout,
        train_config=ConfigRecord({"lr": config.lr}),
        evaluate_fn=test,
    )
    model = out / "model.safetensors"
    trained = trained_model(config, wire.from_record(result.arrays))
    save_file(trained.state_dict(), model, {"algorithm": config.algo})
    files = {"history": history.path, "model": model}
    try:
        files["picture"] = draw_run(history.path, out / "run.png")
    except MissingExtraError as error:
        logger.warning("no picture: %s", error)
    for line in summarise(read_history(history.path)).text().splitlines():
        logger.info("%s", line)
    for label, path in files.items():
        logger.info("%-8s %s", label, path)
    if checkpointer is not None and not history.ended_early:
        checkpointer.discard()
    return out


def output_dir(config: RunConfig) -> Path:
    """Return the absolute folder of the run's files, made if need be."""
    if config.resume:
        out = run_folder(Path(config.resume).expanduser().absolute())
    elif config.out_dir:
        out = Path(config.out_dir).expanduser().absolute()
    else:
        stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        out = Path.cwd() / "runs" / f"{stamp}-{config.algorithm.label()}"
    return make_output_folder(out)


def _portable(config: RunConfig) -> dict[str, object]:
    """Return the configuration without what depends on the machine."""
    return {
        key: value for key, value in config.settings.items() if key not in INCIDENTAL
    } | {"trace": Path(config.trace).name}


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
        "flwr": version("flwr"),
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
        settings=config.settings,
        incidental=IRRELEVANT,
        defaults=_DEFAULTS,
        command=command or _flwr_run(config, out),
    )


def _flwr_run(config: RunConfig, out: Path) -> str:
    """Return the ``flwr run`` that resumes a run; it needs as many nodes."""
    settings = {**config.settings, "out-dir": "", "resume": str(out)}
    given = (
        f"{key}={_toml(value)}"
        for key, value in settings.items()
        if value != _DEFAULTS.get(key, LEFT_OUT)
    )
    return f'flwr run . --run-config "{" ".join(given)}"'


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value).lower()
