"""What the server does to the weights of ResNet34 per update, beside one plain pass."""

from collections.abc import Callable

import torch

from benchmarks.figures import Figure, show
from benchmarks.timing import interleaved
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.masks import MaskContext, RandomMask, unit_scores
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.submodel import State, extract, merge_, plan_submodels

__all__ = ["merge_figures"]

DROP_RATE = 0.25
WEIGHT = 0.5
REPEATS = 15
MERGE_GOAL = 2.0


def merge_figures() -> list[Figure]:
    """Measure merge, extract and scores of a 25 % submodel, on one thread.

    ``merge_vs_lerp`` is the masked merge over one ``lerp_`` pass on the same bytes:
    tensors of the submodel's shapes. ``merge_vs_full_lerp`` is over a pass on the
    whole state, of whose memory the merge reads and writes three quarters.
    """
    torch.set_num_threads(1)
    seconds = interleaved(_actions(), REPEATS)
    return [
        Figure("merge_vs_lerp", seconds["merge"] / seconds["lerp"], MERGE_GOAL),
        Figure("merge_vs_full_lerp", seconds["merge"] / seconds["full_lerp"]),
        Figure("merge_ms", seconds["merge"] * 1e3),
        Figure("extract_ms", seconds["extract"] * 1e3),
        Figure("scores_ms", seconds["scores"] * 1e3),
    ]


def _actions() -> dict[str, Callable[[], object]]:
    model = build_model("resnet34", (3, 32, 32), 10, seed=0)
    plan = plan_submodels(model, torch.zeros(1, 3, 32, 32))
    generator = torch_generator(0, "mask")
    keep = RandomMask(DROP_RATE).choose(MaskContext(plan.groups, 0, 1, generator))
    indices = plan.indices(keep)
    full, initial = _copy(model.state_dict()), _copy(model.state_dict())
    sub = extract(full, indices)
    like_sub = _copy(sub)
    return {
        "lerp": lambda: _lerp(like_sub, sub),
        "merge": lambda: merge_(full, sub, indices, WEIGHT),
        "full_lerp": lambda: _lerp(full, initial),
        "extract": lambda: extract(full, indices),
        "scores": lambda: unit_scores(plan, full, initial),
    }


def _lerp(state: State, target: State) -> None:
    for name, tensor in state.items():
        if tensor.is_floating_point():
            tensor.lerp_(target[name], WEIGHT)


def _copy(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


if __name__ == "__main__":
    show({"merge": merge_figures})
