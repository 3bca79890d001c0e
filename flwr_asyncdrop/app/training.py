"""Local training: a few steps that depend on nothing but their seed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim.sgd import sgd

from flwr_asyncdrop.objectives import LocalSteps


class PlainSGD:
    """`torch.optim.SGD` with momentum, bit for bit, for less time a step.

    It leaves out parameter groups, hooks and profiling: with the digits' `mlp`, a task
    of 50 steps takes 19.2 ms in place of 23.2 ms. A step is ``v <- momentum v + g``,
    then ``w <- w - lr v``, from ``v = g`` on.
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


@dataclass(frozen=True)
class LocalTraining:
    """Mini-batch training on a device's own data.

    The optimiser is new at every dispatch, as in the paper's script. A device with
    fewer samples than `batch_size` has smaller batches; `momentum` is the first decay
    rate of ``"adam"``.
    """

    steps: int
    batch_size: int
    lr: float
    momentum: float
    optimizer: str = "sgd"

    def train(
        self,
        network: nn.Module,
        local: LocalSteps,
        batch: Callable[[Tensor], tuple[Tensor, Tensor]],
        num_samples: int,
        generator: torch.Generator,
    ) -> float:
        """Train in place; return the mean loss over all samples seen.

        `network` has the parameters of ``local.task.model``, `batch` turns positions,
        int64 of shape ``(n,)`` in ``[0, num_samples)``, into inputs and targets, and
        `generator` decides the order of the samples.
        """
        network.train()
        optimiser = self._optimiser(network)
        total, seen = 0.0, 0
        for positions in self._positions(num_samples, generator):
            inputs, targets = batch(positions)
            optimiser.zero_grad()
            loss = local.loss(network(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
            local.adjust_gradients()
            optimiser.step()
            total += loss.item() * len(positions)
            seen += len(positions)
        return total / seen

    def _optimiser(self, model: nn.Module) -> torch.optim.Adam | PlainSGD:
        if self.optimizer == "adam":
            betas = (self.momentum, 0.999)
            return torch.optim.Adam(model.parameters(), self.lr, betas)
        return PlainSGD(model.parameters(), self.lr, self.momentum)

    def _positions(
        self, num_samples: int, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Yield mini-batches from one shuffle after the other."""
        size = min(self.batch_size, num_samples)
        order = torch.randperm(num_samples, generator=generator)
        start = 0
        for _ in range(self.steps):
            if start + size > num_samples:
                order = torch.randperm(num_samples, generator=generator)
                start = 0
            yield order[start : start + size]
            start += size


@contextmanager
def isolated_randomness(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generators for one task and restore them afterwards.

    ``nn.Dropout`` and its like draw from the global generators, which a worker would
    otherwise carry from one simulated device to the next.
    """
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    # Without a list it takes all GPUs, and warns of more than one
    with torch.random.fork_rng(gpus):
        # `torch.manual_seed` formats the call stack for every kind of GPU that is not
        # there: 0.6 ms a task.
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        yield
