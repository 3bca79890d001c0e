import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.simulation.private_flower import assume_identity

assume_identity(run_id=1)

KEYS = wire.RecordKeys()
SHAPES = {"weight": (2, 3), "count": ()}


def state():
    return {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7)}


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


def test_a_task_carries_the_submodel_the_users_config_and_ours():
    message = task(partition_id=3, num_partitions=8)
    assert message.metadata.dst_node_id == 5
    assert message.metadata.message_type == "train"
    assert message.metadata.ttl == 60
    assert dict(message.content["config"]) == {
        "lr": 0.1,
        "server-round": 4,
        "asyncdrop-seed": 99,
        "partition-id": 3,
        "num-partitions": 8,
    }
    assert wire.read_task(message) == wire.TaskConfig(4, 99, 3, 8)


def test_a_real_node_is_not_told_which_device_it_is():
    assert wire.read_task(task()) == wire.TaskConfig(4, 99, None, None)


def test_a_plain_flower_message_reads_as_an_unseeded_task():
    content = RecordDict({"config": ConfigRecord({"lr": 0.1, "server-round": 2})})
    message = Message(content, 1, "train")
    assert wire.read_task(message) == wire.TaskConfig(2, 0, None, None)
    assert wire.read_config(message) == {"lr": 0.1, "server-round": 2}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool]
)
def test_tensors_survive_the_wire_bit_for_bit(dtype):
    tensors = {"a": torch.randn(3, 4).to(dtype), "b": torch.tensor(3).to(dtype)}
    back = wire.from_record(wire.to_record(tensors))
    for name, tensor in tensors.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], tensor)
        back[name].zero_()  # owns its memory
    assert wire.from_record(wire.to_record(tensors))["a"].shape == (3, 4)


def test_a_good_reply_is_read():
    read = wire.read_reply(reply(), SHAPES, KEYS)
    assert torch.equal(read.arrays["weight"], state()["weight"])
    assert read.arrays["count"] == 7
    assert read.num_examples == 10
    assert wire.flat_metrics(read.metrics) == {"num-examples": 10, "loss": 0.5}
    assert read.num_bytes == wire.array_bytes(wire.to_record(state()))
    assert not read.metrics.array_records


def broken(name, array):
    record = wire.to_record(state())
    record[name] = array
    return reply(record)


def nan(value):
    return Array(np.array([[1, 2, 3], [4, 5, value]], np.float32))


@pytest.mark.parametrize(
    ("message", "kind", "says"),
    [
        (
            lambda: Message(Error(code=3, reason="out of\nmemory"), reply_to=task()),
            "client-error",
            "code 3: out of memory",
        ),
        (
            lambda: broken("weight", Array(np.zeros((2, 4), np.float32))),
            "shape",
            r"'weight' came back with shape \(2, 4\) instead of \(2, 3\)",
        ),
        (lambda: broken("weight", nan(np.nan)), "non-finite", "lower the learning"),
        (lambda: broken("weight", nan(np.inf)), "non-finite", "NaN or infinity"),
        (
            lambda: broken("weight", Array("float32", (2, 3), "numpy.ndarray", b"x")),
            "arrays",
            "'weight' cannot be read",
        ),
        (
            lambda: broken("weight", Array("float32", (2, 3), "pickle", b"x")),
            "arrays",
            "'weight' cannot be read",
        ),
        (
            lambda: broken("weight", Array(np.full((2, 3), "text"))),
            "arrays",
            "not a number",
        ),
        (
            lambda: broken("extra", nan(0)),
            "arrays",
            "differ from those sent in 'extra'",
        ),
        (
            lambda: reply(ArrayRecord()),
            "arrays",
            "differ from those sent in 'count' and 1 more",
        ),
        (lambda: reply(metrics={"loss": 1.0}), "num-examples", "no 'num-examples'"),
        (lambda: reply(metrics={"num-examples": 0}), "num-examples", "positive"),
        (lambda: reply(metrics={"num-examples": [1]}), "num-examples", "positive"),
        (
            lambda: Message(RecordDict(), reply_to=task()),
            "arrays",
            "carries 0 ArrayRecords",
        ),
    ],
)
def test_a_bad_reply_is_refused_in_one_line(message, kind, says):
    with pytest.raises(ReplyError, match=says) as caught:
        wire.read_reply(message(), SHAPES, KEYS)
    assert caught.value.kind == kind
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200), st.sampled_from(["float32", "int64", "object", "O"]))
def test_hostile_bytes_never_get_past_the_reader(data, dtype):
    message = broken("weight", Array(dtype, (2, 3), "numpy.ndarray", data))
    with pytest.raises(ReplyError):
        wire.read_reply(message, SHAPES, KEYS)
