"""What a strategy's submodels leave out, and what they cost."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Literal

from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.assignment import Assignment, ExampleInputs
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import Plan, State, plan_blocks, plan_submodels


def discover(
    strategy: str,
    units: Literal["channels", "blocks"],
    model: nn.Module | None,
    example_inputs: ExampleInputs | None,
    scope: Literal["internal", "all"],
) -> Plan:
    """Return the units of a model, or its residual blocks; messages name `strategy`."""
    if model is None or example_inputs is None:
        raise ConfigError(
            f"{strategy} makes submodels: pass the model and example inputs, e.g. "
            f"{strategy}(Net(), torch.zeros(1, 3, 32, 32)), or a plan"
        )
    if units == "blocks":
        return plan_blocks(model, example_inputs)
    return plan_submodels(model, example_inputs, scope=scope)


def first_costs(
    assignment: Assignment, initial: State, seed: int, num_ranks: int
) -> Sequence[TaskCost]:
    """Return what the first task of each speed rank asks of its device."""
    # A policy may change whenever it is asked, and the run has not begun.
    assignment = assignment.with_masks(deepcopy(assignment.masks))
    state = RunState.start_from(initial, seed)
    costs = []
    for rank in range(num_ranks):
        part = assignment.part(state, rank, num_ranks)
        size = sum(tensor.nbytes for tensor in (part.arrays or {}).values())
        costs.append(TaskCost(part.compute, size, size))
    return costs
