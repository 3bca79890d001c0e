"""What a submodel of ResNet34 costs, beside the full model, in one interleaved run."""

import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.figures import Figure
from benchmarks.timing import interleaved
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.masks import MaskContext, RandomMask
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels

__all__ = ["submodel_figures"]

BATCH = 16
REPEATS = 7


def submodel_figures() -> Iterator[Figure]:
    """Measure step time and bytes of a 25 % submodel over the full model's.

    A step is forward, backward and SGD on a batch of 16 CIFAR images, one thread.
    """
    torch.set_num_threads(1)
    model = build_model("resnet34", (3, 32, 32), 10, seed=0)
    inputs = torch.randn(BATCH, 3, 32, 32, generator=torch_generator(0, "inputs"))
    started = time.perf_counter()
    plan = plan_submodels(model, inputs[:1])
    yield Figure("plan_s_resnet34", time.perf_counter() - started, 2)
    keep = RandomMask(0.25).choose(
        MaskContext(plan.groups, 0, 1, torch_generator(0, "mask"))
    )
    state = model.state_dict()
    sub_state = extract(state, plan.indices(keep))
    submodel = load_submodel(model, sub_state)
    seconds = interleaved(
        {"full": _step(model, inputs), "sub": _step(submodel, inputs)}, REPEATS
    )
    yield Figure("submodel_step_ratio_25", seconds["sub"] / seconds["full"], 0.62)
    ratio = _num_bytes(sub_state) / _num_bytes(state)
    yield Figure("submodel_bytes_ratio_25", ratio, 0.57)


def _step(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    labels = torch.arange(BATCH) % 10
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.train()

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimiser.step()

    return step


def _num_bytes(state: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
