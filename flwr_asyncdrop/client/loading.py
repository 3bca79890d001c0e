"""Loads a submodel: the one line that a Flower client changes."""

from flwr.app import ArrayRecord
from torch import nn

from flwr_asyncdrop import submodel, wire


def load_submodel(model: nn.Module, arrays: ArrayRecord) -> nn.Module:
    """Return `model`, really narrower, with the weights that the server sent.

    It takes the place of ``model.load_state_dict(...)`` in a Flower client::

        model = load_submodel(Net(), message.content["arrays"])

    The widths are read off the shapes of the arrays. A residual block whose arrays are
    empty is left out: its input passes on. Full-size arrays give the full model.

    Parameters
    ----------
    model : nn.Module
        The full model; its weights do not matter.
    arrays : ArrayRecord
        What the server sent.

    Returns
    -------
    nn.Module
        Train it as usual, and return its ``state_dict()``.

    Raises
    ------
    ShapeError
        If the arrays are no submodel of `model`.
    """
    return submodel.load_submodel(model, wire.from_record(arrays))
