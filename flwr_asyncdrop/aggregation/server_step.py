"""The step that the server takes with a mean change."""

import torch

from flwr_asyncdrop.aggregation.changes import is_weight
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import State


class ServerStep:
    """Gradient descent with momentum on mean changes.

    ``V <- beta V + D``, ``W <- W + lr V`` with the mean change ``D``. Counters and
    running statistics take their new values as they are.

    Parameters
    ----------
    lr : float
        Learning rate, positive.
    momentum : float
        ``beta``, in [0, 1).

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    def __init__(self, lr: float = 1.0, momentum: float = 0.0) -> None:
        if not lr > 0:
            raise ConfigError(f"server_lr={lr!r} must be more than 0")
        if not 0 <= momentum < 1:
            raise ConfigError(f"server_momentum={momentum!r} must lie in [0, 1)")
        self._lr = lr
        self._momentum = momentum

    @torch.no_grad()
    def take_(self, state: State, mean: State, velocity: State) -> None:
        """Take one step.

        Parameters
        ----------
        state : dict of str to Tensor
            ``W``; changed in place.
        mean : dict of str to Tensor
            ``D``; used up.
        velocity : dict of str to Tensor
            ``V``, empty before the first step; its tensors are replaced.
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


@torch.no_grad()
def average_(average: State, state: State, decay: float, count: int) -> None:
    """Take the `count`-th model into an exponential average, in place.

    ``E_t = (1 - d) sum_i d^(t-i) W_i / (1 - d^t)``: the weights of the ``t`` models so
    far add up to one, so that the first ones do not count for more than later ones.

    Parameters
    ----------
    average : dict of str to Tensor
        ``E_(t-1)``, and ``E_t`` afterwards; for ``t = 1`` its values do not matter.
    state : dict of str to Tensor
        ``W_t``.
    decay : float
        ``d``, in [0, 1).
    count : int
        ``t``, from 1.
    """
    share = (1 - decay) / (1 - decay**count)
    for name, tensor in state.items():
        if tensor.is_floating_point() or tensor.is_complex():
            average[name].lerp_(tensor, share)
        else:
            average[name].copy_(tensor)
