"""What the virtual clock says of the same fleet."""

import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report.runlog import RunLog

__all__ = [
    "SHARES",
    "differences",
    "is_complete",
    "is_predicted",
    "predict",
    "seconds_per_step",
]

SHARES = (0.5, 0.4, 0.3, 0.2, 0.1)
"""CPUs of each device; together they leave a quarter of two cores to the server."""


def is_complete(history: Path) -> bool:
    """Return whether a run is there, and came to its end."""
    try:
        return RunLog.from_records(read_history(history)).complete
    except DataError:
        return False


def differences(history: Path, config: Mapping[str, object]) -> str:
    """Return what in the run-config of a complete run is another, "" for nothing."""
    first, *_ = read_history(history)
    return ", ".join(
        f"{key}={first['config'].get(key)!r}"
        for key, value in config.items()
        if first["config"].get(key) != value
    )


def is_predicted(
    config: Mapping[str, object], seconds_per_step_of_fastest: float, out: Path
) -> bool:
    """Return whether what `predict` would make is there."""
    history, trace = out / "history.jsonl", out / "fleet.csv"
    return (
        is_complete(history)
        and not differences(history, config)
        and trace.exists()
        and trace.read_text() == _trace(seconds_per_step_of_fastest)
    )


def seconds_per_step(history: Path, config: Mapping[str, object]) -> float:
    """Return what a step of the full model takes on the fastest device.

    All from dispatch to reply, in the median of its tasks, over their local steps.

    Parameters
    ----------
    history : Path
        Of a real run in which every device trains the full model.
    config : mapping of str to object
        The run-config.
    """
    seconds: dict[int, list[float]] = {}
    for line in read_history(history):
        if line["event"] == "update":
            took = line["time"] - line["dispatched_at"]
            seconds.setdefault(line["device"], []).append(took)
    fastest = min(statistics.median(tasks) for tasks in seconds.values())
    return fastest / float(str(config["local-steps"]))


def predict(
    config: Mapping[str, object], seconds_per_step_of_fastest: float, out: Path
) -> None:
    """Simulate a run: a device of half the share takes twice the time.

    It takes the place of one that was interrupted.

    Parameters
    ----------
    config : mapping of str to object
        The run-config of the real run.
    seconds_per_step_of_fastest : float
        Seconds of a step of the full model on the device of the largest share.
    out : Path
        Folder of the run's files.
    """
    out.mkdir(parents=True, exist_ok=True)
    trace = out / "fleet.csv"
    trace.write_text(_trace(seconds_per_step_of_fastest))
    flags = [f"--{key}={value}" for key, value in config.items()]
    command = [sys.executable, "-m", "flwr_asyncdrop", "simulate", "--workers", "2"]
    subprocess.run(
        [
            *command,
            *("--devices", str(len(SHARES)), "--trace", str(trace)),
            *("--out", str(out), "--overwrite", *flags),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _trace(seconds_per_step_of_fastest: float) -> str:
    lines = [seconds_per_step_of_fastest * SHARES[0] / share for share in SHARES]
    return "\n".join(["seconds_per_step", *map(str, lines)]) + "\n"
