"""What submodels save, model by model, and what planning and a task cost.

``python -m benchmarks.zoo`` prints the table of docs/models.md; names of models may
follow. Steps of the full model and of its submodels are timed in turn on one thread.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.figures import Figure
from benchmarks.timing import interleaved
from benchmarks.vision import vision_models
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.masks import MaskContext, RandomMask
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.submodel import (
    Plan,
    State,
    droppable_share,
    extract,
    load_submodel,
    merge_,
    plan_submodels,
    savings,
)
from tests.zoo.catalogue import ZOO
from tests.zoo.entries import Entry
from tests.zoo.expected import plan_of, reasons
from tests.zoo.passes import Arguments, leaves, loss_of

__all__ = ["Row", "markdown", "measure", "zoo_figures"]

RATES = (0.25, 0.5)
BATCH = 8
REPEATS = 5

_HEADER = """\
| model | parameters | droppable | bytes 25 % / 50 % | step 25 % / 50 % | plan | whole |
|---|--:|--:|--:|--:|--:|---|"""


@dataclass(frozen=True)
class Row:
    """What was measured of one model.

    Attributes
    ----------
    name : str
        The model's name in the zoo.
    parameters : int
        How many numbers it trains.
    share : float
        The share of its elements that lie at a droppable unit.
    bytes_ratios, step_ratios : tuple of float
        Submodel over full model, one a rate of `RATES`.
    plan_seconds : float
        What planning took, verification included.
    whole : str
        What stays whole and why, in short.
    """

    name: str
    parameters: int
    share: float
    bytes_ratios: tuple[float, ...]
    step_ratios: tuple[float, ...]
    plan_seconds: float
    whole: str


def measure(name: str, entry: Entry) -> Row:
    """Plan a model, and time steps of it and of its submodels in turn."""
    model = entry.model()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    started = time.perf_counter()
    try:
        plan = plan_of(entry, model)
    except UnsupportedModelError as error:
        seconds = time.perf_counter() - started
        whole, why = (1.0,) * len(RATES), "; ".join(reasons(error))
        return Row(name, parameters, 0.0, whole, whole, seconds, f"all: {why}")
    seconds = time.perf_counter() - started
    given, example = entry.example(BATCH), entry.example(1)
    actions = {"full": _step(model, given)}
    for rate in RATES:
        sub = _extract(plan, model.state_dict(), rate)
        actions[str(rate)] = _step(load_submodel(model, sub), given)
    times = interleaved(actions, REPEATS)
    costs = savings(plan, model, example.args or dict(example.kwargs), RATES)
    return Row(
        name=name,
        parameters=parameters,
        share=droppable_share(plan),
        bytes_ratios=tuple(cost.bytes_ratio for cost in costs),
        step_ratios=tuple(times[str(rate)] / times["full"] for rate in RATES),
        plan_seconds=seconds,
        whole=_whole(plan),
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    return "\n".join([_HEADER, *(_line(row) for row in rows)])


def zoo_figures() -> Iterator[Figure]:
    """Measure planning of ViT-B/16 at 224 pixels, and one task's overhead.

    The overhead is what submodels add to a task of ResNet34: extract, build the narrow
    module and load it, merge.
    """
    torch.set_num_threads(1)
    vit = vision_models().vit_b_16()
    image = torch.randn(1, 3, 224, 224, generator=torch_generator(0, "image"))
    started = time.perf_counter()
    plan_submodels(vit, image)
    yield Figure("plan_s_vit_b", time.perf_counter() - started, 5)

    model = build_model("resnet34", (3, 32, 32), 10, seed=0)
    plan = plan_submodels(model, image[:, :, :32, :32])
    full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    keep = RandomMask(0.25).choose(
        MaskContext(plan.groups, 0, 1, torch_generator(0, "mask"))
    )

    def task() -> None:
        indices = plan.indices(keep)
        small = load_submodel(model, extract(full, indices))
        merge_(full, small.state_dict(), indices, 0.5)

    overhead = interleaved({"task": task}, 4 * REPEATS)["task"]
    yield Figure("task_overhead_ms_resnet34", overhead * 1000, 60)


def _extract(plan: Plan, state: State, rate: float) -> State:
    mask = RandomMask(rate)
    keep = mask.choose(MaskContext(plan.groups, 0, 1, torch_generator(0, "mask")))
    return extract(state, plan.indices(keep))


def _step(model: nn.Module, given: Arguments) -> Callable[[], None]:
    """Return one step: forward, backward, SGD with momentum."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model.train()

    def step() -> None:
        optimiser.zero_grad()
        loss_of(list(leaves(model(*given.args, **given.kwargs)))).backward()
        optimiser.step()

    return step


def _whole(plan: Plan) -> str:
    """Return how many modules stay whole for each reason, but for the last layer."""
    reasons = Counter(
        reason.partition(":")[0].partition(" (")[0]
        for reason in plan.left_out.values()
        if reason != "part of the model's output"
    )
    return "; ".join(f"{count} {reason}" for reason, count in reasons.items()) or "–"


def _line(row: Row) -> str:
    sizes, steps = (
        " / ".join(f"{ratio:.2f}" for ratio in ratios)
        for ratios in (row.bytes_ratios, row.step_ratios)
    )
    return (
        f"| `{row.name}` | {row.parameters / 1e6:.2f} M | {row.share:.0%} | {sizes} | "
        f"{steps} | {row.plan_seconds:.2f} s | {row.whole} |"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the models that are named, or all; print each line as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(ZOO))
    torch.set_num_threads(1)
    print(_HEADER)
    for name in parser.parse_args(argv).models or ZOO:
        print(_line(measure(name, ZOO[name])), flush=True)


if __name__ == "__main__":
    main()
