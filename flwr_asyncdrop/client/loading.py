"""Loads a submodel: the one line that a Flower client changes."""

from typing import TypeVar

from flwr.app import ArrayRecord
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.parameters import A_SWITCH
from flwr_asyncdrop.submodel import cpu_by_default, load_in_place

Model = TypeVar("Model", bound=nn.Module)


@cpu_by_default()
def load_submodel(model: Model, arrays: ArrayRecord, *, scale: bool = True) -> Model:
    """Make `model` as narrow as what the server sent, with its weights.

    It takes the place of ``model.load_state_dict(...)`` in a Flower client::

        load_submodel(model, message.content["arrays"])

    The widths are read off the shapes of the arrays. A residual block whose arrays are
    empty is left out: its input passes on. Full-size arrays give the full model. The
    model changes in place and can be loaded again, with any other submodel: an
    optimizer that was built before trains it, as long as it has no state yet.
    `flwr_asyncdrop.submodel.load_submodel` makes a new model instead.

    Parameters
    ----------
    model : nn.Module
        The model; its weights do not matter.
    arrays : ArrayRecord
        What the server sent.
    scale : bool, default True
        As in `flwr_asyncdrop.submodel.load_submodel`.

    Returns
    -------
    nn.Module
        The same object. Train it as usual, and return its ``state_dict()``.

    Raises
    ------
    ShapeError
        If the arrays are no submodel of `model`, or if it cannot be narrowed in place.
        Where the strategy trains a part of the model, a `FrozenMod` completes them.
    UnsupportedModelError
        If lazy layers of `model` have not run yet, or if it cannot be copied, as one
        that FSDP has sharded: load it before.
    """
    A_SWITCH.check("scale", scale)
    load_in_place(model, wire.from_record(arrays), scale=scale)
    return model
