"""How running statistics and 1/keep scaling decide what a merged model is worth.

A small asynchronous run without Flower: clients train random submodels from versions
that are some updates old, and the results are mixed into the full model (Algorithm 2).
Every few updates the full model is tested in three ways: with the running statistics
that were merged like weights, with statistics recalibrated on training data, and with
the statistics of the test batches. ``docs/batchnorm.md`` has the table and the rule.

    python -m benchmarks.batchnorm_ablation
    python -m benchmarks.batchnorm_ablation --dataset fashion-mnist --data-dir DIR
"""

import argparse
import copy
import json
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from flwr_asyncdrop.app.data import Dataset, by_speed_level, iid, load_dataset
from flwr_asyncdrop.app.data.partitions import Halves
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.masks import MaskContext, RandomMask
from flwr_asyncdrop.seeding import numpy_generator, torch_generator
from flwr_asyncdrop.submodel import (
    Indices,
    Plan,
    State,
    extract,
    load_submodel,
    merge_,
    plan_submodels,
    recalibrate_bn,
)

CLIENTS = 8
ALPHA = 0.5
BATCH = 32
TEST_BATCH = 256
CALIBRATION_BATCHES = 8
LAST_EVALUATIONS = 4


@dataclass(frozen=True)
class Setting:
    """What is compared: how much is dropped, and whether inputs are scaled."""

    drop_rate: float
    scale: bool


@dataclass(frozen=True)
class Job:
    """One client's task: what it got, and what it will hand back."""

    client: int
    number: int
    indices: Indices
    state: State


class Run:
    """One run of one setting with one seed."""

    def __init__(
        self, data: Dataset, args: argparse.Namespace, setting: Setting, seed: int
    ) -> None:
        self._data = data
        self._args = args
        self._setting = setting
        self._seed = seed
        self._model = build_model(args.model, data.input_shape, data.num_classes, seed)
        self._full: State = self._model.state_dict()
        self._plan: Plan = plan_submodels(self._model, data.batch("train", slice(2))[0])
        self._mask = RandomMask(setting.drop_rate)
        self._parts = self._partition()

    def _partition(self) -> Sequence[NDArray[np.int64]] | Halves:
        labels = self._data.train_y[: self._args.samples]
        generator = numpy_generator(self._seed, "partition")
        if self._args.partition == "iid":
            return iid(len(labels), CLIENTS, generator=generator)
        return by_speed_level(labels.numpy(), CLIENTS, CLIENTS, generator=generator)

    def accuracies(self) -> dict[str, float]:
        """Train, and return the mean accuracy of the last evaluations by rule."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        flying = deque(self._dispatch(client, client) for client in range(CLIENTS))
        updates = self._args.updates
        for number in range(updates):
            job = flying.popleft()
            merge_(self._full, self._train(job), job.indices, ALPHA)
            flying.append(self._dispatch(job.client, number + CLIENTS))
            left = updates - 1 - number
            if left % CLIENTS == 0 and left < CLIENTS * LAST_EVALUATIONS:
                for rule, accuracy in self._evaluate():
                    found[rule].append(accuracy)
        return {rule: statistics.fmean(values) for rule, values in found.items()}

    def _dispatch(self, client: int, number: int) -> Job:
        generator = torch_generator(self._seed, "mask", number)
        keep = self._mask.choose(MaskContext(self._plan.groups, 0, 1, generator))
        indices = self._plan.indices(keep)
        return Job(client, number, indices, extract(self._full, indices))

    def _train(self, job: Job) -> State:
        model = load_submodel(self._model, job.state, scale=self._setting.scale)
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=self._args.lr, momentum=0.9)
        generator = numpy_generator(self._seed, "batches", job.number)
        for _ in range(self._args.steps):
            samples = generator.choice(self._parts[job.client], BATCH)
            inputs, labels = self._data.batch("train", samples)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
        return model.state_dict()

    def _evaluate(self) -> Iterator[tuple[str, float]]:
        model = copy.deepcopy(self._model).eval()
        yield "merged", self._accuracy(model)
        if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
            return
        recalibrate_bn(model, self._calibration())
        yield "recalibrated", self._accuracy(model)
        for module in model.modules():
            module.train(isinstance(module, nn.BatchNorm2d))
        yield "test batch", self._accuracy(model)

    def _calibration(self) -> Iterator[Tensor]:
        generator = numpy_generator(self._seed, "calibration")
        for _ in range(CALIBRATION_BATCHES):
            samples = generator.choice(self._args.samples, TEST_BATCH)
            yield self._data.batch("train", samples)[0]

    @torch.no_grad()
    def _accuracy(self, model: nn.Module) -> float:
        right = 0
        for start in range(0, len(self._data.test_y), TEST_BATCH):
            inputs, labels = self._data.batch("test", slice(start, start + TEST_BATCH))
            right += int((model(inputs).argmax(1) == labels).sum())
        return right / len(self._data.test_y)


def measure(args: argparse.Namespace) -> dict[tuple[Setting, str], list[float]]:
    """Run every setting with every seed; print a JSON line for each result."""
    data = load_dataset(args.dataset, args.data_dir, download=False)
    args.samples = min(args.samples, len(data.train_y))
    settings = [Setting(0.0, False)]
    settings += [Setting(*pair) for pair in product(args.drop_rates, (False, True))]
    table: defaultdict[tuple[Setting, str], list[float]] = defaultdict(list)
    for setting, seed in product(settings, range(args.seeds)):
        for rule, accuracy in Run(data, args, setting, seed).accuracies().items():
            table[setting, rule].append(accuracy)
            line = {"name": "batchnorm_ablation", "value": round(accuracy, 4)}
            line |= {"statistics": rule, "seed": seed, **asdict(setting)}
            print(json.dumps(line), flush=True)
    return table


def print_table(table: dict[tuple[Setting, str], list[float]]) -> None:
    """Print means and population standard deviations over seeds, a row a setting."""
    rules = list(dict.fromkeys(rule for _, rule in table))
    print("\n| drop | 1/keep scaling | " + " | ".join(rules) + " |")
    print("|---|---|" + "---|" * len(rules))
    for setting in dict.fromkeys(setting for setting, _ in table):
        columns = [table[setting, rule] for rule in rules]
        cells = [
            f"{statistics.fmean(values):.3f} ± {statistics.pstdev(values):.3f}"
            for values in columns
        ]
        scaled = "–" if not setting.drop_rate else "on" if setting.scale else "off"
        print(f"| {setting.drop_rate:.0%} | {scaled} | {' | '.join(cells)} |")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--partition", choices=("iid", "levels"), default="iid")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--drop-rates", type=float, nargs="+", default=[0.25, 0.5])
    parser.add_argument("--updates", type=int, default=96)
    parser.add_argument("--steps", type=int, default=10, help="local steps an update")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print_table(measure(parse(argv)))


if __name__ == "__main__":
    main()
