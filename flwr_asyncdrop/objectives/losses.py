"""The terms of local objectives."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import at_least, in_interval
from flwr_asyncdrop.readable import type_of

LossFn = Callable[[Tensor, Tensor], Tensor]
"""From logits, shape ``(batch, classes)``, and labels to the mean loss."""


_SHIFT = 1.0
_MOST_LOGITS = 2**22


def takes_logits(loss_fn: LossFn, labels: Tensor, num_classes: int) -> bool:
    """Return whether a loss is one of logits: the same with a number added to all.

    Those are cross entropy, with weights or smoothed labels too, and a focal loss. A
    squared error is none, nor is the likelihood of log probabilities: to add ``log p``
    to what they take corrects nothing.

    Parameters
    ----------
    loss_fn : callable
        From outputs and labels to the mean loss.
    labels : Tensor
        Some labels, int64: one of each class is tried, of their type and device. The
        loss of some classes may be nothing.
    num_classes : int
        Number of logits.
    """
    # Every class, or as many as there is room for.
    room = max(_MOST_LOGITS // num_classes, 1)
    each = torch.arange(0, num_classes, math.ceil(num_classes / room)).to(labels)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(
        len(each), num_classes, generator=generator, dtype=torch.float32
    )
    logits = drawn.to(labels.device)
    try:
        with torch.no_grad():
            losses = loss_fn(logits, each), loss_fn(logits + _SHIFT, each)
        return torch.allclose(*losses, rtol=1e-4, atol=1e-5)
    except Exception:  # whatever a user's function raises: it takes something else
        return False


def class_counts(labels: Tensor, num_classes: int) -> Tensor:
    """Return how often each class occurs, float; ConfigError for labels of no class."""
    given: object = labels
    if not isinstance(given, Tensor):
        raise ConfigError(f"labels are {type_of(given)}: pass torch.tensor(labels)")
    if (
        labels.dim() != 1
        or len(labels) == 0
        or labels.is_floating_point()
        or labels.min() < 0
        or labels.max() >= num_classes
    ):
        raise ConfigError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}: give int64 of "
            f"shape (n,), at least one, of {num_classes} classes numbered from 0"
        )
    return torch.bincount(labels, minlength=num_classes).float()


class LogitAdjustedLoss:
    """A loss for a device whose labels are not those of the whole fleet.

    ``L(z + tau log p, y)`` with the device's own label shares ``p`` (logit adjustment,
    Menon et al., 2021; for federated learning Zhang et al., 2022). A device that never
    sees a class then hardly pushes its logit down. The model learns the posterior under
    equal class shares; at test its logits are used as they are.

    Parameters
    ----------
    labels : Tensor
        All labels of the device, int64 of shape ``(n,)``; they may lie in another
        memory than the logits, unless `loss_fn` has tensors of its own.
    num_classes : int
        Number of logits.
    tau : float
        Strength: 0 is plain cross entropy, 1 the full adjustment.
    smoothing : float
        In (0, 1]: ``p`` is mixed with equal shares at this rate, so that no share is
        zero and a device of a single class still learns a little.
    loss_fn : callable
        ``L``, a loss of logits: cross entropy by default.

    Raises
    ------
    ConfigError
        If a number or a label is out of range, if there are no labels, or if `loss_fn`
        is no loss of logits, as `takes_logits` has it.
    """

    def __init__(
        self,
        labels: Tensor,
        num_classes: int,
        tau: float,
        smoothing: float = 0.03,
        *,
        loss_fn: LossFn = F.cross_entropy,
    ) -> None:
        at_least(0).check("logit_adjustment", tau)
        in_interval("(0, 1]").check("smoothing", smoothing)
        counts = class_counts(labels, num_classes)
        if loss_fn is not F.cross_entropy and not takes_logits(
            loss_fn, labels, num_classes
        ):
            raise ConfigError(
                f"logit-adjustment={tau} adds to logits, and the task's loss takes "
                "something else: another number in all of them changes it; set it to 0"
            )
        self._loss_fn = loss_fn
        shares = (1 - smoothing) * counts / len(labels) + smoothing / num_classes
        self.offsets = tau * shares.log()

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch."""
        return self._loss_fn(logits + self.offsets.to(logits.device), labels)


class Proximal:
    """FedProx's pull, of strength `mu`, towards the weights that `model` has now."""

    def __init__(self, model: nn.Module, mu: float) -> None:
        at_least(0).check("proximal_mu", mu)
        self._mu = mu
        self._pairs = [(p, p.detach().clone()) for p in model.parameters()]

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add ``mu (w - w_dispatched)``, the gradient of the proximal term."""
        for parameter, start in self._pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=self._mu)
