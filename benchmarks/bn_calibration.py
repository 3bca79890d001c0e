"""What the source of batch normalisation's statistics does to the tests of a run.

A run of the ready app, in which every test is done several times, with the same trained
weights and running statistics from different inputs: as they were *merged* from
submodels, of *test inputs* (which leaks them), of samples that are *held out* of
training (what the app does), of a sixteenth of these, and the mean of those that
*devices* learn for the full model, one of each speed level from 256 samples each.

    python -m benchmarks.bn_calibration --task digits --out runs/calibration
    python -m benchmarks.bn_calibration --task resnet-cifar10-small --data-dir DATA \
        --algos async-fedavg,hetero-asyncdrop --seeds 0-2 --out runs/calibration

Runs that are in ``--out`` are not done again. ``docs/batchnorm.md`` has the tables.
"""

import argparse
import json
import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from numpy.typing import NDArray
from torch import nn

from benchmarks.figures import say
from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import Split
from flwr_asyncdrop.app.device import best_device
from flwr_asyncdrop.app.evaluation import evaluate
from flwr_asyncdrop.app.experiment import (
    calibration_samples,
    initial_model,
    load_data,
    partitions,
)
from flwr_asyncdrop.app.precision import in_precision
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.seeding import numpy_generator
from flwr_asyncdrop.simulation import LocalGrid
from flwr_asyncdrop.storage.whole import write_whole
from flwr_asyncdrop.submodel import State, load_submodel, recalibrate_bn

__all__ = ["Tests", "accuracies", "rows"]

NODES = 104
BATCH = 256
BATCHES = 8

Value = str | int | float
Accuracies = dict[str, list[float]]


class Tests:
    """An ``evaluate_fn`` that tests with every source of statistics.

    Attributes
    ----------
    accuracies : dict of str to list of float
        Of each source, in the order of the tests.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._data = load_data(config)
        self.accuracies: Accuracies = {}

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Test a model with every source of statistics; the first one tells nothing."""
        torch.set_num_threads(self._config.threads)
        if server_round > 0:
            state = wire.from_record(arrays)
            for name, split, batches in self._sources():
                found = self._accuracy(self._calibrated(state, split, batches))
                self.accuracies.setdefault(name, []).append(found)
        return MetricRecord()

    def _sources(self) -> Iterator[tuple[str, Split, list[NDArray[np.int64]]]]:
        yield "merged", "train", []
        tested = np.arange(min(len(self._data.test_y), BATCH * BATCHES))
        yield "test inputs", "test", _batches(tested)
        held_out = calibration_samples(self._config)
        yield "held out", "train", _batches(held_out)
        yield "a sixteenth of it", "train", _batches(held_out[: len(held_out) // 16])
        yield "devices", "train", self._of_devices()

    def _of_devices(self) -> list[NDArray[np.int64]]:
        generator = numpy_generator(self._config.seed, "calibrating devices")
        parts = partitions(self._config, NODES)
        chosen = [parts[device] for device in range(0, NODES, NODES // BATCHES)]
        return [generator.permutation(part)[:BATCH] for part in chosen]

    def _calibrated(
        self, state: State, split: Split, batches: Sequence[NDArray[np.int64]]
    ) -> nn.Module:
        device = best_device()
        model = load_submodel(initial_model(self._config), state).to(device)
        inputs = (self._data.batch(split, batch, device)[0] for batch in batches)
        recalibrate_bn(in_precision(model, self._config.precision), inputs)
        return model

    def _accuracy(self, model: nn.Module) -> float:
        totals = evaluate(model, self._data, self._config.precision)
        return self._data.task.metrics(totals)["accuracy"]


def _batches(samples: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.array_split(samples, -(-len(samples) // BATCH))


def accuracies(settings: Mapping[str, Value]) -> Accuracies:
    """Run what the settings say; return the accuracies of its tests by source."""
    config = RunConfig.parse(settings)
    tests = Tests(config)
    with LocalGrid(
        "flwr_asyncdrop.client_app:app",
        num_nodes=NODES,
        workers=0,
        run_config=settings,
    ) as grid:
        build_strategy(config).start(
            grid,
            ArrayRecord(initial_model(config).state_dict()),
            num_rounds=config.num_rounds,
            train_config=ConfigRecord({"lr": config.lr}),
            evaluate_fn=tests,
        )
    return tests.accuracies


def rows(runs: Sequence[Accuracies]) -> Iterator[str]:
    """Yield a table of some seeds' runs of one algorithm, a row a source.

    How far a source is from test inputs is said of each test of all runs, in points.
    """
    yield "| statistics | max. accuracy | final accuracy | apart | at most |"
    yield "| --- | --: | --: | --: | --: |"
    for source in runs[0]:
        apart = [
            100 * (here - there)
            for run in runs
            for here, there in zip(run[source], run["test inputs"], strict=True)
        ]
        cells = [
            _mean([100 * max(run[source]) for run in runs]),
            _mean([100 * run[source][-1] for run in runs]),
            f"{statistics.fmean(apart):+.2f}",
            f"{max(apart, key=abs):+.2f}",
        ]
        yield f"| {source} | " + " | ".join(cells) + " |"


def _mean(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


def _read(path: Path) -> Accuracies | None:
    """Return what a run has found; None if it is not there, or was cut off."""
    try:
        found: Accuracies = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what runs are missing, and print a table for each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=sorted(PRESETS), default="digits")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--algos", default="hetero-asyncdrop")
    parser.add_argument("--seeds", default="0-2", help="first-last")
    parser.add_argument("--num-rounds", type=int, help="else as long as the task is")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    options = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    first, _, last = options.seeds.partition("-")
    options.out.mkdir(parents=True, exist_ok=True)
    for algo in options.algos.split(","):
        runs = []
        for seed in range(int(first), int(last or first) + 1):
            explicit: dict[str, Value] = {"algo": algo, "seed": seed}
            if options.num_rounds is not None:
                explicit["num-rounds"] = options.num_rounds
            name = "-".join([options.task, *(str(v) for v in explicit.values())])
            found = options.out / f"{name}.json"
            if (known := _read(found)) is None:
                say(name)
                explicit["data-dir"] = options.data_dir
                settings = preset_settings(PRESETS[options.task], explicit)
                known = accuracies(settings)
                write_whole(found, json.dumps(known).encode())
            runs.append(known)
        print(f"\n{algo}\n", *rows(runs), sep="\n", flush=True)


if __name__ == "__main__":
    main()
