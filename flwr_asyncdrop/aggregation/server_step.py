"""The step that the server takes with a mean change."""

import torch

from flwr_asyncdrop.aggregation.changes import is_weight, wide
from flwr_asyncdrop.parameters import in_interval, more_than
from flwr_asyncdrop.submodel import State
from flwr_asyncdrop.submodel.types import is_inexact


class ServerStep:
    """Gradient descent with momentum on mean changes.

    ``V <- beta V + D``, ``W <- W + lr V`` with the mean change ``D``. Counters and
    running statistics take their new values as they are. `lr` is more than 0, and
    `momentum`, the ``beta``, in [0, 1).
    """

    def __init__(self, lr: float = 1.0, momentum: float = 0.0) -> None:
        self._lr: float = more_than(0).check("server_lr", lr)
        in_range = in_interval("[0, 1)")
        self._momentum: float = in_range.check("server_momentum", momentum)

    @torch.no_grad()
    def take_(self, state: State, mean: State, velocity: State) -> None:
        """Take one step, in place; `mean` is used up.

        `velocity` is empty before the first step, and its tensors are replaced.
        """
        for name, tensor in state.items():
            if not is_weight(name, tensor):
                tensor.copy_(mean[name])
                continue
            step = mean[name]
            if self._momentum:
                if name in velocity:
                    step = step.add_(velocity[name], alpha=self._momentum)
                velocity[name] = step
            tensor.add_(step, alpha=self._lr)


def room_for_average(state: State) -> State:
    """Return a copy in which `average_` adds models up: half precision in single.

    It has no room for small steps: a decay near 1 would leave the average where it is.
    """
    return {
        name: (wide(tensor) if is_inexact(tensor) else tensor).clone()
        for name, tensor in state.items()
    }


@torch.no_grad()
def average_(average: State, state: State, decay: float, count: int) -> None:
    """Take the `count`-th model into an exponential average, in place.

    ``E_t = (1 - d) sum_i d^(t-i) W_i / (1 - d^t)``: the weights of the ``t`` models so
    far add up to one. `average` is a `room_for_average`, `count` is ``t``, from 1, and
    `decay` is ``d``, in [0, 1). For ``t = 1`` the values in `average` do not matter.
    """
    share = (1 - decay) / (1 - decay**count)
    for name, tensor in state.items():
        if is_inexact(tensor):
            average[name].lerp_(tensor.to(average[name].dtype), share)
        else:
            average[name].copy_(tensor)
