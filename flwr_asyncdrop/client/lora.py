"""Loads the adapters that the server sent: the one line that a LoRA client changes."""

from typing import TypeVar

from flwr.app import ArrayRecord
from torch import nn

from flwr_asyncdrop import submodel, wire
from flwr_asyncdrop.submodel.lora import Pairs

Model = TypeVar("Model", bound=nn.Module)


@submodel.cpu_by_default()
def load_lora(
    model: Model, arrays: ArrayRecord, *, pairs: Pairs | None = None
) -> Model:
    """Give the adapters of `model` the ranks and values that the server sent.

    It takes the place of ``set_peft_model_state_dict(...)`` in a Flower client::

        load_lora(model, message.content["arrays"])
        ...  # train
        reply = ArrayRecord(lora_state(model))

    The scaling of every adapter stays that of its full rank. One without components is
    not run. The model changes in place and can be loaded again, with other ranks; see
    `flwr_asyncdrop.submodel.load_lora`.

    Parameters
    ----------
    model : nn.Module
        A PEFT model, or one with adapters of its own, as the server built it.
    arrays : ArrayRecord
        What the server sent.
    pairs : sequence of tuple, optional
        As for `flwr_asyncdrop.submodel.lora_plan`.

    Returns
    -------
    nn.Module
        The same object.

    Raises
    ------
    ShapeError
        If the arrays are not those of the model's adapters.
    """
    submodel.load_lora(model, wire.from_record(arrays), pairs=pairs)
    return model
