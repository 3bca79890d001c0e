"""SCAFFOLD (Karimireddy et al., ICML 2020) on an asynchronous server.

The server's control variate travels with every task, and each device keeps one of its
own. A reply brings back by how much the device's has changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from flwr_asyncdrop.aggregation import Aggregator, Buffered, Update
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.objectives import (
    LocalObjective,
    LocalSteps,
    LocalTask,
    StandardObjective,
    StandardSteps,
)
from flwr_asyncdrop.parameters import more_than, parameter
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.submodel import State

CONTROL = "control-variate"


class ControlledBuffer(Buffered):
    """FedBuff that also collects control variates.

    ``c <- c + rate * (c_i' - c_i)`` with every update; in the paper, where all devices
    are known, the rate is one over their number.
    """

    def __init__(self, size: int, rate: float) -> None:
        super().__init__(size)
        self._rate = rate
        self._control: State = {}

    def extra(self, state: State) -> Mapping[str, State]:
        """Send the server's control variate along."""
        if not self._control:
            self._control = {
                name: torch.zeros_like(tensor)
                for name, tensor in state.items()
                if tensor.is_floating_point() or tensor.is_complex()
            }
        return {CONTROL: self._control}

    def merge(self, state: State, update: Update) -> bool:
        """Take in the change of the model, and that of the control variate."""
        changed = super().merge(state, update)
        self._control = {
            name: torch.add(tensor, update.extra[CONTROL][name], alpha=self._rate)
            for name, tensor in self._control.items()
        }
        return changed

    def state_dict(self) -> StateDict:
        """Return what is buffered, and the control variate."""
        return {**super().state_dict(), "control": self._control}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from there."""
        super().load_state_dict(state)
        self._control = dict(state["control"])


class ControlledSteps(StandardSteps):
    """Local steps along ``g - c_i + c``."""

    def __init__(self, task: LocalTask) -> None:
        super().__init__(task)
        self._server = task.extra[CONTROL]
        zeros = {name: torch.zeros_like(c) for name, c in self._server.items()}
        self._own = task.state.get(CONTROL, zeros)
        named = task.model.named_parameters()
        self._start = {name: p.detach().clone() for name, p in named}

    def adjust_gradients(self) -> None:
        """Take away the device's drift, and add the server's."""
        super().adjust_gradients()
        for name, parameter_ in self.task.model.named_parameters():
            if parameter_.grad is not None:
                parameter_.grad.add_(self._server[name] - self._own[name])

    def finish(self) -> Mapping[str, State]:
        """Return ``c_i' - c_i`` with ``c_i' = c_i - c + (x - y_i) / (K lr)``."""
        scale = 1 / (self.task.steps * self.task.number("lr"))
        change = {name: -control for name, control in self._server.items()}
        for name, parameter_ in self.task.model.named_parameters():
            change[name] += (self._start[name] - parameter_.detach()) * scale
        own = {name: self._own[name] + delta for name, delta in change.items()}
        self.task.state[CONTROL] = own
        return {CONTROL: change}


class Controlled(StandardObjective):
    """The task's own loss, with control variates."""

    def begin(self, task: LocalTask) -> LocalSteps:
        """Begin the local steps of a task."""
        return ControlledSteps(task)


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD with full models; run it with ``momentum=0``, as in the paper.

    Attributes
    ----------
    control_rate : float
        Rate at which the server's control variate follows those of the devices.
    """

    name: ClassVar[str] = "scaffold"
    keeps_client_state: ClassVar[bool] = True

    control_rate: float = parameter(
        0.01, "rate of the server's control variate", more_than(0)
    )

    def aggregator(self, in_flight: int) -> Aggregator:
        """Collect half of the devices in flight."""
        return ControlledBuffer(max(in_flight // 2, 1), self.control_rate)

    def objective(self) -> LocalObjective:
        """Return the local steps with control variates."""
        return Controlled(self.logit_adjustment)
