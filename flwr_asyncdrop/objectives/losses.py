"""Local objectives beside the plain loss."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError

LossFn = Callable[[Tensor, Tensor], Tensor]
"""From logits, shape ``(batch, classes)``, and labels to the mean loss."""


class LogitAdjustedLoss:
    """Cross entropy for a device whose labels are not those of the whole fleet.

    ``CE(z + tau log p, y)`` with the device's own label shares ``p`` (logit adjustment,
    Menon et al., 2021; for federated learning Zhang et al., 2022). A device that never
    sees a class then has next to no gradient that pushes its logit down, so that the
    next device need not push it up again. The model learns the posterior under equal
    class shares; at test its logits are used as they are.

    Parameters
    ----------
    labels : Tensor
        All labels of the device, int64 of shape ``(n,)``.
    num_classes : int
        Number of logits.
    tau : float
        Strength: 0 is plain cross entropy, 1 the full adjustment.
    smoothing : float
        In (0, 1]: ``p`` is mixed with equal shares at this rate, so that no share is
        zero and a device of a single class still learns a little.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    def __init__(
        self, labels: Tensor, num_classes: int, tau: float, smoothing: float = 0.03
    ) -> None:
        if not tau >= 0:
            raise ConfigError(f"logit_adjustment={tau!r} must be at least 0")
        if not 0 < smoothing <= 1:
            raise ConfigError(f"smoothing={smoothing!r} must lie in (0, 1]")
        counts = torch.bincount(labels, minlength=num_classes).float()
        shares = (1 - smoothing) * counts / len(labels) + smoothing / num_classes
        self.offsets = tau * shares.log()

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch."""
        return F.cross_entropy(logits + self.offsets, labels)


class Proximal:
    """FedProx's pull towards the weights that the device was sent.

    Parameters
    ----------
    model : nn.Module
        With the weights ``w_dispatched``.
    mu : float
        Strength of the pull.
    """

    def __init__(self, model: nn.Module, mu: float) -> None:
        self._mu = mu
        self._pairs = [(p, p.detach().clone()) for p in model.parameters()]

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add ``mu (w - w_dispatched)``, the gradient of the proximal term."""
        for parameter, start in self._pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=self._mu)
