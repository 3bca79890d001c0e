"""How many bytes of a task and its reply Flower sends: full models and submodels."""

import torch
from flwr.app import Message, MetricRecord, RecordDict
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


def volume_figures() -> list[Figure]:
    """Count the bytes of a task and its reply, of the full model and of 25 % less."""
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
    ]


def _update_bytes(state: State) -> int:
    """Return the bytes of all that Flower takes a task and its reply apart into."""
    arrays = wire.to_record(state)
    keys = wire.RecordKeys()
    order = wire.TaskConfig(round=1, seed=1)
    task = wire.make_task(arrays, {"lr": 0.05}, order, node_id=1, keys=keys)
    metrics = MetricRecord({keys.num_examples: 100, "train-loss": 0.5})
    content = RecordDict({keys.arrays: arrays, "metrics": metrics})
    task.metadata.__dict__["_message_id"] = task.object_id
    reply = Message(content, reply_to=task)
    return _message_bytes(task) + _message_bytes(reply)


def _message_bytes(message: Message) -> int:
    parts = get_all_nested_objects(message)
    return sum(len(part.deflate()) for part in parts.values())
