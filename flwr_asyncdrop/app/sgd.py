"""Stochastic gradient descent without what `torch.optim.SGD` does beside it."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.sgd import sgd


class PlainSGD:
    """`torch.optim.SGD` with momentum, bit for bit, for less time a step.

    PyTorch's arithmetic, without its parameter groups, hooks and profiling: of the
    digits' `mlp`, a step with a batch of 16 takes 211 us of CPU, and 266 us with
    `torch.optim.SGD`; with a batch of 128, 367 and 435 us. A whole task of 50 steps
    takes 19.2 ms and 23.2 ms; of the digits' `cnn`, 130 and 135 ms.

    Parameters
    ----------
    parameters : iterable of Parameter
        What is trained in place; those without a gradient stay as they are.
    lr, momentum : float
        ``v <- momentum v + g``, then ``w <- w - lr v``, from ``v = g`` on.
    """

    def __init__(
        self, parameters: Iterable[Parameter], lr: float, momentum: float
    ) -> None:
        self._parameters = list(parameters)
        self._velocities: list[Tensor | None] = [None] * len(self._parameters)
        self._lr = lr
        self._momentum = momentum

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        moved = [k for k, w in enumerate(self._parameters) if w.grad is not None]
        velocities = [self._velocities[k] for k in moved]
        sgd(
            [self._parameters[k] for k in moved],
            [w.grad for w in self._parameters if w.grad is not None],
            velocities,
            lr=self._lr,
            momentum=self._momentum,
            dampening=0.0,
            weight_decay=0.0,
            nesterov=False,
            maximize=False,
        )
        for k, velocity in zip(moved, velocities, strict=True):
            self._velocities[k] = velocity
