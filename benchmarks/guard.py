"""What the guard against outliers costs for each update."""

from functools import partial

import torch

from benchmarks.figures import Figure, show
from benchmarks.timing import interleaved
from flwr_asyncdrop.aggregation import OutlierGuard, Update
from flwr_asyncdrop.app.models import build_model

__all__ = ["guard_figures"]

REPEATS = 40


def guard_figures() -> list[Figure]:
    """Measure it on one thread, for full models, once it knows what is usual."""
    torch.set_num_threads(1)
    checks = {}
    for name, shape in (("resnet34", (3, 32, 32)), ("mlp", (1, 8, 8))):
        state = build_model(name, shape, 10, seed=0).state_dict()
        arrays = {
            key: tensor * 1.001 if tensor.is_floating_point() else tensor
            for key, tensor in state.items()
        }
        update, guard = Update(arrays, {}, 0, 1), OutlierGuard()
        for _ in range(32):
            guard.check(state, update, state, num_devices=100)
        checks[name] = partial(guard.check, state, update, state, num_devices=100)
    seconds = interleaved(checks, REPEATS)
    return [Figure(f"guard_{name}_ms", each * 1e3) for name, each in seconds.items()]


if __name__ == "__main__":
    show({"guard": guard_figures})
