"""A small model's task and replies to it, for tests of the wire."""

import numpy as np
import torch
from flwr.app import Array, Message, MetricRecord, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.flower_internals.identity import assume_identity

assume_identity(run_id=1)

KEYS = wire.RecordKeys()


def state():
    return {
        "weight": torch.arange(6.0).reshape(2, 3),
        "bn.running_var": torch.ones(2),
        "count": torch.tensor(7),
    }


EXPECTED = wire.Expected(
    {name: tuple(tensor.shape) for name, tensor in state().items()},
    {name: tensor.dtype for name, tensor in state().items()},
    max_examples=1000,
)


def task(**changes):
    config = wire.TaskConfig(round=4, seed=99, **changes)
    return wire.make_task(
        wire.to_record(state()), {"lr": 0.1}, config, node_id=5, keys=KEYS, ttl=60
    )


def reply(arrays=None, metrics=None, to=None):
    arrays = wire.to_record(state()) if arrays is None else arrays
    metrics = {"num-examples": 10, "loss": 0.5} if metrics is None else metrics
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=to or task())


def reply_with(name, values):
    """A good reply but for one array; `values` of NumPy, or an ``Array``."""
    record = wire.to_record(state())
    record[name] = Array(values) if isinstance(values, np.ndarray) else values
    return reply(record)
