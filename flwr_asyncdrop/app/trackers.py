"""The trackers of a run of the ready app, and where their files go."""

from collections.abc import Callable, Mapping
from pathlib import Path

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.config.ranges import read_trackers
from flwr_asyncdrop.observers import (
    MlflowTracker,
    OpenTelemetryTracing,
    TensorBoardTracker,
    WandbTracker,
)
from flwr_asyncdrop.observers.trackers.mlflow import local_uri
from flwr_asyncdrop.observers.trackers.tracker import Setting
from flwr_asyncdrop.server.callbacks import Callback

PROJECT = "flwr-asyncdrop"
"""MLflow's experiment, and the project of Weights & Biases."""


def trackers_of(
    config: RunConfig, settings: Mapping[str, object], out: Path
) -> list[Callback]:
    """Return the trackers of ``track``; `settings` are what they show of the run.

    Their files go into the run's folder `out`.
    """
    shown: dict[str, Setting] = {
        key: value
        for key, value in settings.items()
        if isinstance(value, bool | int | float | str) and value != ""
    }
    name = _run_name(out)
    build: Mapping[str, Callable[[], Callback]] = {
        "tensorboard": lambda: TensorBoardTracker(
            out / "tensorboard", shown, overwrite=config.overwrite
        ),
        "mlflow": lambda: MlflowTracker(
            PROJECT, local_uri(out / "mlruns"), shown, run_name=name
        ),
        # The library makes the folder `wandb` in it.
        "wandb": lambda: WandbTracker(
            PROJECT, folder=out, settings=shown, run_name=name
        ),
        "opentelemetry": lambda: OpenTelemetryTracing(shown),
    }
    return [build[name]() for name in read_trackers(config.track)]


def _run_name(out: Path) -> str:
    """Return what a run is called: as its folder, and the one above of a comparison."""
    parts = out.parts[-2:] if out.name.startswith("seed-") else out.parts[-1:]
    return "/".join(parts)
