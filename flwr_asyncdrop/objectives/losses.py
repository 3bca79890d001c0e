"""The terms of local objectives."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_asyncdrop.parameters import at_least, in_interval

LossFn = Callable[[Tensor, Tensor], Tensor]
"""From logits, shape ``(batch, classes)``, and labels to the mean loss."""


class LogitAdjustedLoss:
    """Cross entropy for a device whose labels are not those of the whole fleet.

    ``CE(z + tau log p, y)`` with the device's own label shares ``p`` (logit adjustment,
    Menon et al., 2021; for federated learning Zhang et al., 2022). A device that never
    sees a class then hardly pushes its logit down. The model learns the posterior under
    equal class shares; at test its logits are used as they are.

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
    """

    def __init__(
        self, labels: Tensor, num_classes: int, tau: float, smoothing: float = 0.03
    ) -> None:
        at_least(0).check("logit_adjustment", tau)
        in_interval("(0, 1]").check("smoothing", smoothing)
        counts = torch.bincount(labels, minlength=num_classes).float()
        shares = (1 - smoothing) * counts / len(labels) + smoothing / num_classes
        self.offsets = tau * shares.log()

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch."""
        return F.cross_entropy(logits + self.offsets, labels)


class Proximal:
    """FedProx's pull, of strength `mu`, towards the weights that `model` has now."""

    def __init__(self, model: nn.Module, mu: float) -> None:
        self._mu = mu
        self._pairs = [(p, p.detach().clone()) for p in model.parameters()]

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add ``mu (w - w_dispatched)``, the gradient of the proximal term."""
        for parameter, start in self._pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=self._mu)
