"""Finds what a strategy's submodels leave out."""

from typing import Literal

from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server.assignment import ExampleInputs
from flwr_asyncdrop.submodel import Plan, plan_blocks, plan_submodels


def discover(
    strategy: str,
    units: Literal["channels", "blocks"],
    model: nn.Module | None,
    example_inputs: ExampleInputs | None,
    scope: Literal["internal", "all"],
) -> Plan:
    """Return the units of a model.

    Parameters
    ----------
    strategy : str
        Name of the strategy's class, for messages.
    units : {"channels", "blocks"}
        What its masks leave out.
    model : nn.Module or None
        The model; None if the strategy was given none.
    example_inputs : Tensor, tuple or None
        Inputs that the model runs on.
    scope : {"all", "internal"}
        Which of the channels; blocks go as a whole.

    Raises
    ------
    ConfigError
        If the model or the inputs are missing.
    UnsupportedModelError
        If the model has no such units.
    """
    if model is None or example_inputs is None:
        raise ConfigError(
            f"{strategy} makes submodels: pass the model and example inputs, e.g. "
            f"{strategy}(Net(), torch.zeros(1, 3, 32, 32)), or a plan"
        )
    if units == "blocks":
        return plan_blocks(model, example_inputs)
    return plan_submodels(model, example_inputs, scope=scope)
