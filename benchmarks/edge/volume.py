"""How many bytes of a task and its reply Flower sends: full models and submodels."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch import nn

from benchmarks.figures import Figure
from flwr_asyncdrop import wire
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.flower_internals.identity import assume_identity
from flwr_asyncdrop.masks import MaskContext, RandomMask
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.submodel import State, extract, plan_submodels

__all__ = ["volume_figures"]

_SHARE_LEFT_OUT = 0.25
_DIGITS, _CIFAR = (1, 8, 8), (3, 32, 32)
_CLASSES = 10
_AS_IT_IS, _Q4 = wire.Coding(), wire.Coding("q4", "q4")


def volume_figures() -> list[Figure]:
    """Count the bytes of a task and its reply.

    Of the full model, of 25 % less, and of that with 4 bits a number.
    """
    assume_identity(run_id=1)
    default = build_model("cnn", _DIGITS, _CLASSES, seed=0)
    resnet = build_model("resnet34", _CIFAR, _CLASSES, seed=0)
    return [*_of(default, _DIGITS, ""), *_of(resnet, _CIFAR, "_resnet34")]


def _of(model: nn.Module, shape: tuple[int, ...], suffix: str) -> list[Figure]:
    plan = plan_submodels(model, torch.zeros(1, *shape))
    generator = torch_generator(0, "mask")
    keep = RandomMask(_SHARE_LEFT_OUT).choose(MaskContext(plan.groups, 0, 1, generator))
    full = model.state_dict()
    sliced = extract(full, plan.indices(keep))
    return [
        Figure(f"update_bytes_full{suffix}", _update_bytes(full)),
        Figure(f"update_bytes_sliced{suffix}", _update_bytes(sliced)),
        Figure(f"update_bytes_q4{suffix}", _update_bytes(sliced, _Q4)),
    ]


def _update_bytes(state: State, coding: wire.Coding = _AS_IT_IS) -> int:
    """Return the bytes of all that Flower takes a task and its reply apart into."""
    keys = wire.RecordKeys()
    arrays = wire.encode_weights(state, coding)
    order = wire.TaskConfig(round=1, seed=1)
    config = {"lr": 0.05, **coding.entries(keys.arrays)}
    task = wire.make_task(arrays, config, order, node_id=1, keys=keys)
    if coding.up:
        changes = {
            name: tensor
            for name, tensor in state.items()
            if wire.is_coded(name, tuple(tensor.shape), tensor.dtype)
        }
        coded = wire.encode_changes(changes, state, coding)
        arrays = ArrayRecord({**wire.to_record(state), **coded})
    metrics = MetricRecord({keys.num_examples: 100, "train-loss": 0.5})
    content = RecordDict({keys.arrays: arrays, "metrics": metrics})
    task.metadata.__dict__["_message_id"] = task.object_id
    reply = Message(content, reply_to=task)
    return _message_bytes(task) + _message_bytes(reply)


def _message_bytes(message: Message) -> int:
    parts = get_all_nested_objects(message)
    return sum(len(part.deflate()) for part in parts.values())
