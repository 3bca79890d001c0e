"""Local training: a few steps that depend on nothing but their seed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flwr_asyncdrop.app.sgd import PlainSGD
from flwr_asyncdrop.objectives import LocalSteps


@dataclass(frozen=True)
class LocalTraining:
    """Mini-batch training on a device's own data.

    The optimiser is new at every dispatch, as in the paper's script.

    Attributes
    ----------
    steps : int
        Mini-batches.
    batch_size : int
        Samples in each; fewer if the device has no more.
    lr, momentum : float
        Of the optimiser; Adam's first decay rate for ``momentum``.
    optimizer : {"sgd", "adam"}
        Which it is.
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

        Parameters
        ----------
        network : nn.Module
            Computes the outputs; its parameters are those of ``local.task.model``.
        local : LocalSteps
            The loss, and what becomes of its gradients.
        batch : callable
            Turns positions, int64 of shape ``(n,)`` in ``[0, num_samples)``, into
            inputs and targets.
        num_samples : int
            Samples that the device holds, at least 1.
        generator : torch.Generator
            Decides the order of the samples.
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
    with torch.random.fork_rng():
        # `torch.manual_seed` formats the call stack for every kind of GPU that is not
        # there: 0.6 ms a task.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        yield
