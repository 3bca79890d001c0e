"""The tensors of a module as its ``state_dict`` names them."""

from torch import Tensor, nn


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the module's own parameters and buffers, not copies, by state name."""
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def owner_of(name: str) -> str:
    """Return the name of the module that holds the tensor `name`."""
    return name.rpartition(".")[0]
