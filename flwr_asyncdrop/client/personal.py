"""Layers that a client keeps to itself, although each task has other units of them."""

import logging

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from torch import Tensor, nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.client.region import Index, Region
from flwr_asyncdrop.client.state import device_of
from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.submodel import State, cpu_by_default
from flwr_asyncdrop.submodel.lora.tensors import peft_names
from flwr_asyncdrop.submodel.types import tensors_of

logger = logging.getLogger("flwr.asyncdrop")

_VALUES, _KNOWN = "asyncdrop-personal.", "asyncdrop-personal-known."


@torch.no_grad()
@cpu_by_default()
def load_personal(
    context: Context, model: nn.Module, message: Message, *names: str
) -> None:
    """Put what this client has kept of some layers into a model.

    Call it after the message's arrays are loaded::

        load_submodel(model, message.content["arrays"])
        load_personal(context, model, message, "classifier")

    Units that the client has never trained have the server's weights. It works with
    submodels, with full models, and with ``mode="masked"``, whose dropped units stay
    zero.

    Parameters
    ----------
    context : Context
        Flower's; ``context.state`` has what was kept, for every simulated device.
    model : nn.Module
        The model that has the message's arrays.
    message : Message
        A task, or an evaluation.
    *names : str
        Names of modules or tensors, as in ``model.named_modules()``.

    Raises
    ------
    ConfigError
        If the model has nothing of that name, or if it is not sent.
    ShapeError
        If the model is not the one that the message is about.
    """
    values, known = _stored(context, message)
    kept = wire.read_kept(message)
    for name, tensor in _chosen(model, message, names).items():
        if name not in values:
            continue
        region = Region.of(name, tuple(tensor.shape), kept)
        _check_stored(name, values[name], region.full)
        mine = values[name][region.index].to(tensor.device, tensor.dtype)
        is_known = known[name][region.index].to(tensor.device)
        at = region.own_index
        tensor[at] = torch.where(is_known, mine, tensor[at])


@torch.no_grad()
@cpu_by_default()
def save_personal(
    context: Context, model: nn.Module, message: Message, *names: str
) -> None:
    """Keep some layers of a model on this client, after training.

    The counterpart of `load_personal`, with the same arguments. What other tasks kept
    of units that this one leaves out stays.

    Afterwards the layers of `model` have what the reply should carry: the weights that
    the server sent, moved as far as this task has moved the client's own. So the
    server's layers learn from all clients. The client's own weights would lead it
    back to where they are with every reply, however late.

    Layers that have become NaN or infinite are not kept, and stay in `model`: the
    server refuses that reply, and the next task begins with what was kept before.
    """
    values, known = _stored(context, message)
    kept = wire.read_kept(message)
    replies: dict[int, tuple[Tensor, Index, Tensor]] = {}  # tied ones have two names
    for name, tensor in _chosen(model, message, names).items():
        region = Region.of(name, tuple(tensor.shape), kept)
        mine = tensor.detach().cpu()
        if not mine.isfinite().all() and _sent(message, name).isfinite().all():
            logger.warning("%s has NaN or infinity: what was kept before stays", name)
            return
        if mine.dtype == torch.bfloat16:  # NumPy has none
            mine = mine.float()
        if name not in values:
            values[name] = torch.zeros(region.full, dtype=mine.dtype)
            known[name] = torch.zeros(region.full, dtype=torch.bool)
        _check_stored(name, values[name], region.full)
        place, at = region.index, region.own_index
        trained, was_known = mine[at].clone(), known[name][place].clone()
        before = values[name][place].clone()
        values[name][place] = trained
        known[name][place] = True
        if isinstance(tensor, nn.Parameter) and id(tensor) not in replies:
            moved = _sent(message, name)[at] + (trained - before)
            reply = torch.where(was_known, moved, trained).to(tensor)
            replies[id(tensor)] = tensor, at, reply
    # Only now: under another name a tensor is still to be kept.
    for tensor, at, reply in replies.values():
        tensor[at] = reply
    _store(context, message, values, known)


def _sent(message: Message, name: str) -> Tensor:
    """Return a tensor as the server sent it; the model's record comes first."""
    records = wire.records_of(message.content, ArrayRecord).values()
    record = next(record for record in records if name in record)
    return wire.from_record(ArrayRecord({name: record[name]}))[name]


def _chosen(
    model: nn.Module, message: Message, names: tuple[str, ...]
) -> dict[str, Tensor]:
    """Return the model's own tensors with these names, or in modules with them.

    They have the names under which they travel: PEFT's leave out the adapter's, and of
    its layers the base stays where it is.
    """
    records = wire.records_of(message.content, ArrayRecord).values()
    sent = {name for record in records for name in record}
    tensors = tensors_of(model)
    aliases = {} if tensors.keys() <= sent else peft_names(model)
    chosen: dict[str, Tensor] = {}
    for wanted in names:
        found = {
            name: name if name in sent else aliases.get(name, name)
            for name in tensors
            if _is_in(name, wanted) or _is_in(aliases.get(name, name), wanted)
        }
        if not found:
            raise ConfigError(
                f"{type(model).__name__} has no layer or tensor {wanted!r}: take a "
                "name from model.named_modules()"
            )
        here = {known: tensors[name] for name, known in found.items() if known in sent}
        foreign = sorted(set(found.values()) - sent)
        if foreign and not (aliases and here):
            raise ConfigError(
                f"{foreign[0]!r} is not among the arrays of the message: load the "
                "model that was built for it, and name layers that are sent; one that "
                "never travels stays in context.state as it is "
                "(docs/migrating.md#personal-layers)"
            )
        chosen |= here
    return chosen


def _is_in(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")


def _check_stored(name: str, stored: Tensor, full: tuple[int, ...]) -> None:
    if tuple(stored.shape) != full:
        raise ShapeError(
            f"this client has kept {name} of shape {tuple(stored.shape)}, and the "
            f"model has {full}: start the run anew with one model"
        )


def _stored(context: Context, message: Message) -> tuple[State, State]:
    """Return what the device has kept: values at full size, and which of them."""
    values_key, known_key = _keys(message)
    records = wire.records_of(context.state, ArrayRecord)
    if values_key not in records:
        return {}, {}
    values = wire.from_record(records[values_key])
    known = {}
    for name, packed in records[known_key].items():
        shape = values[name].shape
        bits = np.unpackbits(packed.numpy(), count=values[name].numel())
        known[name] = torch.from_numpy(bits.astype(np.bool_)).view(shape)
    return values, known


def _store(context: Context, message: Message, values: State, known: State) -> None:
    values_key, known_key = _keys(message)
    context.state[values_key] = wire.to_record(values)
    context.state[known_key] = ArrayRecord(
        {
            name: Array(np.packbits(mask.numpy().reshape(-1)))
            for name, mask in known.items()
        }
    )


def _keys(message: Message) -> tuple[str, str]:
    device = device_of(message)
    return _VALUES + device, _KNOWN + device
