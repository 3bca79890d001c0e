"""Two layers with six hidden units between them, for tests of merging."""

import torch

from flwr_asyncdrop.submodel import Plan, UnitGroup

PLAN = Plan(
    groups=(UnitGroup("hidden", 6, "internal"),),
    shapes={"in.weight": (6, 4), "in.bias": (6,), "out.weight": (3, 6)},
    axes={
        "in.weight": {0: torch.arange(6)},
        "in.bias": {0: torch.arange(6)},
        "out.weight": {1: torch.arange(6)},
    },
    parameters=frozenset({"in.weight", "in.bias", "out.weight"}),
)


def random_state(seed):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator) for n, s in PLAN.shapes.items()}
