"""The coders on ResNet34's tensors: speed of one core, bytes, and where they pay.

``python -m benchmarks.codec`` also prints, for each scheme, up to which speed of a link
encoding, sending and decoding takes less time than sending the numbers as they are.
With ``--before 300 --data-dir DATA`` its bytes are those of a model that has learnt
from CIFAR-10 for 300 steps.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.figures import Figure
from flwr_asyncdrop.app.data import load_dataset
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.masks import MaskContext, RandomMask
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.submodel import State, extract, load_submodel, plan_submodels
from flwr_asyncdrop.wire.codec import PRESETS, Codec, Scheme, codec, scheme

__all__ = ["codec_figures"]

DROP_RATE = 0.25
SPEED_GOAL = 400.0  # MB of float32 a second
RATIO_GOAL = 0.08
REPEATS = 7
BATCH = 16
LOCAL_STEPS = 2
# Smaller tensors, and running statistics, travel as they are.
FEWEST = 256
SCHEMES = ("q8", "q4", "q2", "q1", "top10%+q4")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Speed:
    """CPU seconds of one core for some tensors, and their bytes."""

    encode: float
    decode: float
    raw: int
    coded: int

    @property
    def crossover(self) -> float:
        """Mbit/s of the link on which coding saves as much time as it takes."""
        return 8e-6 * (self.raw - self.coded) / (self.encode + self.decode)


def codec_figures() -> Iterator[Figure]:
    """Measure q4 on all large tensors of ResNet34, and the bytes of a 25 % submodel.

    Speeds are MB of float32 in a second of a core's CPU time, with stochastic rounding
    and zstd. ``wire_ratio_q4_25`` is bytes down and up over twice the full model's.
    """
    torch.set_num_threads(1)
    task = make_task()
    speed = measure(scheme("q4"), list(coded(task.full).values()))
    yield Figure("codec_mb_s_encode", speed.raw / 1e6 / speed.encode, SPEED_GOAL, True)
    yield Figure("codec_mb_s_decode", speed.raw / 1e6 / speed.decode, SPEED_GOAL, True)
    yield Figure("wire_ratio_q4_25", wire_ratio(task, codec("q4")), RATIO_GOAL)


@dataclass(frozen=True)
class Task:
    """What travels of a submodel: weights down, their change up."""

    full: State
    down: State
    up: State


def make_task(before: int = 0, data_dir: Path | None = None) -> Task:
    """Train ResNet34 for `before` steps, then a 25 % submodel for a few.

    They are steps on CIFAR-10, or on noise where there is no folder of it.
    """
    model = build_model("resnet34", (3, 32, 32), 10, seed=0)
    plan = plan_submodels(model, torch.zeros(1, 3, 32, 32))
    keep = RandomMask(DROP_RATE).choose(
        MaskContext(plan.groups, 0, 1, torch_generator(0, "mask"))
    )
    _train(model, before, data_dir)
    down = {
        name: tensor.clone()
        for name, tensor in extract(model.state_dict(), plan.indices(keep)).items()
    }
    submodel = load_submodel(model, down)
    _train(submodel, LOCAL_STEPS, data_dir)
    trained = submodel.state_dict()
    up = {name: trained[name] - tensor for name, tensor in down.items()}
    return Task(model.state_dict(), down, up)


def _train(model: nn.Module, steps: int, data_dir: Path | None) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.train()
    for inputs, labels in _batches(steps, data_dir):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimiser.step()


def _batches(steps: int, data_dir: Path | None) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch_generator(0, "batches")
    data = load_dataset("cifar10", data_dir) if data_dir else None
    for _ in range(steps):
        if data is None:
            inputs = torch.randn(BATCH, 3, 32, 32, generator=generator)
            yield inputs, torch.randint(10, (BATCH,), generator=generator)
        else:
            chosen = torch.randint(len(data.train_x), (BATCH,), generator=generator)
            yield data.batch("train", chosen)


def coded(state: State) -> dict[str, Floats]:
    """Return the tensors that are coded, flat."""
    return {
        name: tensor.detach().numpy().reshape(-1)
        for name, tensor in state.items()
        if tensor.dtype == torch.float32
        and tensor.numel() >= FEWEST
        and not name.endswith(("running_mean", "running_var"))
    }


def num_bytes(state: State, way: Scheme | None, *, unbiased: bool) -> int:
    """Return the bytes of a state whose large tensors are coded."""
    raw = {name: tensor.nbytes for name, tensor in state.items()}
    if way is not None:
        for seed, (name, values) in enumerate(coded(state).items()):
            raw[name] = len(way.encode(values, seed, unbiased=unbiased))
    return sum(raw.values())


def wire_ratio(task: Task, how: Codec) -> float:
    """Return the bytes of a submodel both ways over those of the full model, raw."""
    down = num_bytes(task.down, how.down, unbiased=False)
    up = num_bytes(task.up, how.up, unbiased=True)
    return (down + up) / (2 * num_bytes(task.full, None, unbiased=False))


def measure(way: Scheme, tensors: list[Floats]) -> Speed:
    """Return the median of a few runs over all tensors, each way."""
    datas = [way.encode(values, 0, unbiased=True) for values in tensors]
    return Speed(
        _cpu_seconds(lambda: [way.encode(v, 0, unbiased=True) for v in tensors]),
        _cpu_seconds(
            lambda: [
                way.decode(data, values.size, 0)
                for data, values in zip(datas, tensors, strict=True)
            ]
        ),
        sum(values.nbytes for values in tensors),
        sum(map(len, datas)),
    )


def _cpu_seconds(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPEATS):
        started = time.thread_time()
        action()
        seconds.append(time.thread_time() - started)
    return statistics.median(seconds)


def print_crossover(speeds: Mapping[str, Speed]) -> None:
    """Print a line a scheme: speed, bits a number, and below which link it pays."""
    print("\nscheme     encode MB/s  decode MB/s  bits a number  pays below Mbit/s")
    for name, speed in speeds.items():
        print(
            f"{name:<10} {speed.raw / 1e6 / speed.encode:>11,.0f}"
            f"  {speed.raw / 1e6 / speed.decode:>11,.0f}"
            f"  {32 * speed.coded / speed.raw:>13.2f}  {speed.crossover:>17,.0f}"
        )


def main() -> None:
    """Print the figures, the crossover of each scheme, and all presets' bytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=int, default=0, help="steps before the task")
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR-10")
    arguments = parser.parse_args()
    task = make_task(arguments.before, arguments.data_dir)
    changes = list(coded(task.up).values())
    print_crossover({name: measure(scheme(name), changes) for name in SCHEMES})
    print("\nbytes of a 25 % submodel both ways, over those of the full model, raw")
    for name in PRESETS:
        print(f"{name:<10} {wire_ratio(task, codec(name)):.4f}")


if __name__ == "__main__":
    main()
