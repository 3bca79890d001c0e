"""Train on containers with CPU shares of 1 to 5, and predict it: JSON lines, a figure.

python -m benchmarks.shares --data DIR --out runs/shares

A fleet of docker/compose.edge.yml, with TLS and keys, trains with one algorithm after
the other for the same wall time. Then the same runs are simulated: from the shares and
one number, the seconds that a task takes on the fastest device. Runs that are there
to their end are not done again.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Figure, say, show
from benchmarks.shares.figure import draw
from benchmarks.shares.prediction import (
    SHARES,
    differences,
    is_complete,
    is_predicted,
    predict,
    seconds_per_step,
)
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report.runlog import RunLog
from scripts.edge.__main__ import make_certificates
from scripts.edge.containers import ContainerFleet, containers_run
from scripts.edge.fleet import Fleet, TrialError, wait_until
from scripts.edge.local import ROOT
from scripts.flwr_run import end_with_signals

ALGORITHMS = ("hetero-asyncdrop", "async-fedavg", "fedavg")
_PATIENCE = 900.0
_TESTS = 5
_CONFIG = {
    "dataset": "fashion-mnist",
    "model": "mlp",
    "partition": "dirichlet",
    "in-flight": len(SHARES),
    "local-steps": 200,
    "batch-size": 128,
    "lr": 0.01,
    "lr-milestones": "",
    "num-rounds": 100_000,
    "checkpoint-every": 0,
}


def main() -> int:
    """Train, predict, compare; return the exit status."""
    arguments = _parser().parse_args()
    end_with_signals()
    out, config = arguments.out, _config(arguments)
    missing = [a for a in ALGORITHMS if not is_complete(_history(out / "real", a))]
    for algorithm in ALGORITHMS:
        history = _history(out / "real", algorithm)
        if algorithm not in missing and (were := differences(history, config)):
            print(
                f"{history} is of a run with {were}: choose another --out, or the same",
                file=sys.stderr,
            )
            return 2
    if missing and not containers_run():
        print("podman and podman-compose are needed", file=sys.stderr)
        return 2
    if missing:
        say(f"train {', '.join(missing)}")
        try:
            train(missing, arguments, config, out / "real")
        except TrialError as error:
            print(error, file=sys.stderr)
            return 1
    slowness = seconds_per_step(_history(out / "real", "async-fedavg"), config)
    for algorithm in ALGORITHMS:
        folder = out / "predicted" / algorithm
        if is_predicted(config, slowness, folder):
            continue
        say(f"predict {algorithm}")
        described = {**config, "algo": algorithm, "data-dir": str(arguments.data)}
        predict(described, slowness, folder)
    logs = {
        kind: {
            algorithm: RunLog.from_records(
                read_history(_history(out / kind, algorithm))
            )
            for algorithm in ALGORITHMS
        }
        for kind in ("real", "predicted")
    }
    figures = [*_figures(logs), Figure("seconds_per_step_fastest", slowness)]
    show({"shares": lambda: figures})
    print(draw(logs, out / "shares.png"))
    return 0


def train(
    algorithms: Sequence[str],
    arguments: argparse.Namespace,
    config: dict[str, object],
    out: Path,
) -> None:
    """Run algorithms on one fleet of containers; copy the histories to `out`."""
    with tempfile.TemporaryDirectory(prefix="shares-") as folder:
        certificates = Path(folder) / "certificates"
        make_certificates(certificates)
        variables = {
            "EDGE_CERTIFICATES": str(certificates),
            "EDGE_DATA": str(arguments.data),
            "ASYNCDROP_WARM": "1",
            **{f"DEVICE_{i}_CPUS": str(share) for i, share in enumerate(SHARES)},
        }
        compose = ROOT / "docker" / "compose.edge.yml"
        with ContainerFleet(compose, variables, keep_images=True) as fleet:
            wait_until(
                lambda: fleet.online() == len(SHARES), "all devices online", _PATIENCE
            )
            # The slowest device needs a while to import PyTorch.
            time.sleep(arguments.settle)
            for algorithm in algorithms:
                history = _history(out, algorithm)
                history.parent.mkdir(parents=True, exist_ok=True)
                _run(fleet, {**config, "algo": algorithm}, history)


def _run(fleet: Fleet, config: dict[str, object], history: Path) -> None:
    """Train to the end of the time, and copy the history."""
    results = f"{fleet.results}/{config['algo']}"
    config |= {"clock": "wall", "data-dir": fleet.data, "out-dir": results}
    pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    command = fleet.flwr("run", fleet.app, "edge", "--stream", "--run-config", pairs)
    try:
        output, _ = command.communicate(
            timeout=float(str(config["max-seconds"])) + _PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        command.kill()
        raise TrialError(f"{config['algo']} does not end") from error
    history.write_text(fleet.read(f"{results}/history.jsonl"))
    if not is_complete(history):
        raise TrialError(f"{config['algo']} has failed: {output}")


def _figures(logs: dict[str, dict[str, RunLog]]) -> list[Figure]:
    figures = []
    for kind, runs in logs.items():
        for algorithm, log in runs.items():
            name = f"{kind}_{algorithm}"
            figures.append(Figure(f"{name}_updates", log.totals.updates))
            figures.append(Figure(f"{name}_accuracy", _accuracy(log)))
            figures.append(Figure(f"{name}_last_accuracy", _accuracy(log, tests=1)))
    for name, tests in (("order_predicted", _TESTS), ("last_order_predicted", 1)):
        real, predicted = (_ranked(runs, tests) for runs in logs.values())
        figures.append(Figure(name, float(real == predicted)))
    return figures


def _ranked(runs: Mapping[str, RunLog], tests: int) -> list[str]:
    """Return the algorithms, the least accurate first."""
    return sorted(ALGORITHMS, key=lambda name: _accuracy(runs[name], tests))


def _accuracy(log: RunLog, tests: int = _TESTS) -> float:
    """Return the mean accuracy of the last few tests, as single ones jump."""
    points = log.curve.points if log.curve else ()
    return statistics.mean([point.value for point in points[-tests:]])


def _history(folder: Path, algorithm: str) -> Path:
    return folder / algorithm / "history.jsonl"


def _config(arguments: argparse.Namespace) -> dict[str, object]:
    return {**_CONFIG, "max-seconds": arguments.seconds, "seed": arguments.seed}


def _folder(text: str) -> Path:
    """Return an absolute path: Compose takes ``DATA`` for the name of a volume."""
    return Path(text).absolute()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shares", description=__doc__)
    parser.add_argument("--data", type=_folder, required=True, help="has FashionMNIST")
    parser.add_argument("--out", type=_folder, required=True)
    parser.add_argument("--seconds", type=float, default=300.0, help="(%(default)s)")
    parser.add_argument("--settle", type=float, default=120.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
