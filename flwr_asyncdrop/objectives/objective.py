"""Local objectives: the client's half of an algorithm."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.objectives.losses import LogitAdjustedLoss, LossFn, Proximal
from flwr_asyncdrop.parameters import at_least, plain
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.submodel import State

# What a config of Flower's may have.
_SENT = (int, float, str, bytes, list)


@dataclass(frozen=True)
class LocalTask:
    """What a client has when its local steps begin.

    Attributes
    ----------
    model : nn.Module
        The submodel with the weights that the server sent.
    loss_fn : callable
        The task's own loss: from outputs and targets of a mini-batch to its mean.
    config : mapping of str to config values
        The train config that came with the task, ``"lr"`` included.
    steps : int
        Local steps that will be taken.
    labels : Tensor or None
        All labels of the device, int64 of shape ``(n,)``; None if the task has none.
    num_classes : int
        Number of classes; 0 if there are none.
    extra : mapping of str to dict of str to Tensor
        The records that the server's `Aggregator.extra` sent along, by name, sliced
        like the model.
    state : mutable mapping of str to dict of str to Tensor
        What the device keeps from one of its tasks to the next.
    """

    model: nn.Module
    loss_fn: LossFn
    config: Mapping[str, object] = field(default_factory=dict)
    steps: int = 1
    labels: Tensor | None = None
    num_classes: int = 0
    extra: Mapping[str, State] = field(default_factory=dict)
    state: MutableMapping[str, State] = field(default_factory=dict)

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a number of the train config; anything else is a ConfigError."""
        value = self.config.get(key, default)
        if not isinstance(value, float | int):
            raise ConfigError(f"{key}={value!r} must be a number")
        return float(value)


class LocalSteps:
    """The local steps of one task; by default plain ones."""

    def __init__(self, task: LocalTask) -> None:
        self.task = task

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch."""
        return self.task.loss_fn(outputs, targets)

    def adjust_gradients(self) -> None:
        """Change the gradients after the backward pass, before the optimiser's step."""

    def finish(self) -> Mapping[str, State]:
        """Return the records that the reply carries beside the model, by name.

        They must have the names and the shapes of those in ``task.extra``.
        """
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Return numbers of its own for the reply, asked for after `finish`.

        The server's aggregator has them in `Update.metrics`, and the history in the
        line of the update.
        """
        return {}


class LocalObjective:
    """What a client minimises; by default the task's own loss.

    Server and clients have equal ones: `config` is called on the server, `begin` on
    the client.
    """

    def config(self) -> Mapping[str, float]:
        """Return what it adds to the train config of every task."""
        return {}

    def begin(self, task: LocalTask) -> LocalSteps:
        """Begin the local steps of a task."""
        return LocalSteps(task)


def checked_config(objective: LocalObjective) -> dict[str, Any]:
    """Return what an objective adds to the train config; ConfigError for no config."""
    found: object = objective.config()
    of = f"config() of {type(objective).__name__}"
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{of} returned {printable(shown(found))}: return a dict of numbers by name"
        )
    made = {name: plain(value) for name, value in found.items()}
    for name, value in made.items():
        if not isinstance(name, str) or not isinstance(value, _SENT):
            raise ConfigError(
                f"{of} has {printable(shown(value))} under {printable(shown(name))}, "
                "which cannot be sent: return a dict of numbers by name"
            )
    return made


@dataclass(frozen=True)
class StandardObjective(LocalObjective):
    """The task's loss, with a logit adjustment and FedProx's term if they are not 0.

    The client reads both from the train config, so that the schedule can lower the
    adjustment.

    Attributes
    ----------
    logit_adjustment : float
        ``tau`` of `LogitAdjustedLoss`; 0 for none.
    proximal_mu : float or None
        ``mu`` of `Proximal`; None for an algorithm without it.

    Raises
    ------
    ConfigError
        If a strength is negative or not finite.
    """

    logit_adjustment: float = 0.0
    proximal_mu: float | None = None

    def __post_init__(self) -> None:
        """Check the strengths."""
        at_least(0).check("logit_adjustment", self.logit_adjustment)
        if self.proximal_mu is not None:
            at_least(0).check("proximal_mu", self.proximal_mu)

    def config(self) -> Mapping[str, float]:
        """Return ``"logit-adjustment"`` and ``"proximal-mu"``, if they are in use."""
        mu, tau = self.proximal_mu, self.logit_adjustment
        found = {} if mu is None else {"proximal-mu": mu}
        return {**found, "logit-adjustment": tau} if tau else found

    def begin(self, task: LocalTask) -> LocalSteps:
        """Begin the local steps, with the strengths of the train config."""
        return StandardSteps(task)


class StandardSteps(LocalSteps):
    """The local steps of `StandardObjective`."""

    def __init__(self, task: LocalTask) -> None:
        super().__init__(task)
        tau, mu = task.number("logit-adjustment"), task.number("proximal-mu")
        self._loss_fn = task.loss_fn
        if tau:
            if task.labels is None:
                raise ConfigError(
                    f"logit-adjustment={tau} corrects a skew of labels, and this task "
                    "has none: set it to 0"
                )
            self._loss_fn = LogitAdjustedLoss(
                task.labels, task.num_classes, tau, loss_fn=task.loss_fn
            )
        self._pull = Proximal(task.model, mu) if mu else None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, maybe adjusted to the labels of the device."""
        return self._loss_fn(outputs, targets)

    def adjust_gradients(self) -> None:
        """Maybe pull the weights towards those that the device was sent."""
        if self._pull is not None:
            self._pull.add_gradients()
