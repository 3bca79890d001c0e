"""Models from outside of the package, by name."""

from collections.abc import Callable

from torch import nn

from flwr_asyncdrop.app.data import Dataset
from flwr_asyncdrop.app.models.factory import seeded_weights
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.references import load_reference

ModelFunction = Callable[[Dataset, float], nn.Module]
"""From the data set, and the factor of all hidden widths, to a new model."""


def build_own_model(
    reference: str, data: Dataset, width: float, seed: int
) -> nn.Module:
    """Build the model that ``"package.module:function"`` names; see `ModelFunction`.

    PyTorch's global generator is seeded for it: the weights depend on the seed alone.
    """
    build: ModelFunction = load_reference("model", reference)
    with seeded_weights(seed):
        model: object = build(data, width)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model={reference!r} returned a {type(model).__name__}: return an "
            "nn.Module"
        )
    return model
