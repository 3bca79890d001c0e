"""FjORD: a new width for every local step, up to the device's largest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr_asyncdrop.masks import MaskPolicy, OrderedMask
from flwr_asyncdrop.objectives import (
    LocalObjective,
    LocalSteps,
    LocalTask,
    StandardObjective,
    StandardSteps,
)
from flwr_asyncdrop.parameters import parameter, whole_from
from flwr_asyncdrop.submodel import Plan, State, plan_submodels, silenced
from torch import Tensor, nn

from baselines.masked import Submodels

_plans: dict[object, Plan] = {}


class NarrowedSteps(StandardSteps):
    """Local steps, each with the first units of every group.

    Before a forward pass the coordinates of all other units become zero, which is the
    narrower model; before the next one they are what they were.
    """

    def __init__(self, task: LocalTask, num_widths: int) -> None:
        super().__init__(task)
        self._num_widths = num_widths
        # The task has seeded the global generator.
        self._drawn = torch.randint(1, num_widths + 1, (task.steps,)).tolist()
        self._masks: dict[int, State] = {}
        self._whole: State = {}
        self._width = num_widths
        self._hook = task.model.register_forward_pre_hook(self._narrow)

    def adjust_gradients(self) -> None:
        """Leave out the gradients of units that the step is without."""
        super().adjust_gradients()
        for name, parameter_ in self.task.model.named_parameters():
            if name in self._whole and parameter_.grad is not None:
                parameter_.grad.mul_(self._masks[self._width][name])

    def finish(self) -> Mapping[str, State]:
        """Give the model all of its units back."""
        self._restore()
        self._hook.remove()
        return super().finish()

    @torch.no_grad()
    def _narrow(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._restore()
        self._width = self._drawn.pop(0)
        if self._width == self._num_widths:
            return
        if self._width not in self._masks:
            self._hook.remove()  # the plan is of a copy, and the model runs in it
            plan = plan_of(model, inputs)
            self._hook = model.register_forward_pre_hook(self._narrow)
            masks = masks_of(plan, self._width, self._num_widths)
            tensors = model.state_dict()
            self._masks[self._width] = {n: m.to(tensors[n]) for n, m in masks.items()}
        tensors, masks = model.state_dict(), self._masks[self._width]
        # All are copied first: two names may share a tensor.
        self._whole = {name: tensors[name].clone() for name in masks}
        for name, mask in masks.items():
            tensors[name].mul_(mask)

    @torch.no_grad()
    def _restore(self) -> None:
        tensors = self.task.model.state_dict()
        for name, whole in self._whole.items():
            kept = self._masks[self._width][name] != 0
            tensors[name].copy_(torch.where(kept, tensors[name], whole))
        self._whole = {}


def plan_of(model: nn.Module, inputs: tuple[Any, ...]) -> Plan:
    """Return the units of a submodel, found once for each size."""
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    known = type(model), str(model), tuple(shapes.items()), inputs[0].shape[1:]
    if known not in _plans:
        _plans[known] = plan_submodels(model, tuple(x[:1].cpu() for x in inputs))
    return _plans[known]


def masks_of(plan: Plan, width: int, num_widths: int) -> dict[str, Tensor]:
    """Return, of the tensors that get narrower, ones where the first units are."""
    keep = []
    for group in plan.groups:
        units = max(group.size * width // num_widths, min(group.least, group.size))
        keep.append(torch.arange(units))
    indices = plan.indices(tuple(keep))
    ones = {name: torch.ones(plan.shapes[name]) for name in indices}
    return silenced(ones, indices)


@dataclass(frozen=True)
class NarrowedObjective(StandardObjective):
    """The task's loss, with a new width for every step.

    Attributes
    ----------
    num_widths : int
        The widths are so many: equal shares of the device's submodel.
    """

    num_widths: int = 4

    def begin(self, task: LocalTask) -> LocalSteps:
        """Begin the local steps."""
        return NarrowedSteps(task, self.num_widths)


@dataclass(frozen=True)
class Fjord(Submodels):
    """FjORD (Horváth et al., NeurIPS 2021) without distillation, for FedBuff.

    Attributes
    ----------
    num_widths : int
        Widths of which each local step draws one: ``1 / n``, ``2 / n``, ... 1 of the
        device's submodel.
    """

    num_widths: int = parameter(
        4, "widths of which each local step draws one", whole_from(1)
    )

    def masks(self) -> MaskPolicy:
        """Return `OrderedMask`: the largest width of each device."""
        return OrderedMask(self.drop_rate)

    def objective(self) -> LocalObjective:
        """Return the objective with a new width for every step."""
        return NarrowedObjective(self.logit_adjustment, num_widths=self.num_widths)
