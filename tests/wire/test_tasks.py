"""What the server sends, and what the client reads of it."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from tests.wire.messages import task


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
    bare = Message(RecordDict({"config": ConfigRecord({})}), 1, "train")
    assert wire.read_task(bare) == wire.TaskConfig(0, 0, None, None)


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


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("key", ["partition-id", "num-partitions", "asyncdrop-seed"])
def test_a_value_of_the_users_that_would_be_lost_is_refused(key, kind):
    def made(value):
        keys, config = wire.RecordKeys(), {key: value, "server-round": 1}
        settings = wire.TaskConfig(4, 8, 8, 8)
        task = wire.make_task(
            ArrayRecord(), config, settings, node_id=5, keys=keys, message_type=kind
        )
        return task.content["config"]

    with pytest.raises(ConfigError, match=rf"^{kind}_config\['{key}'\]=7 would be lo"):
        made(7)
    assert made(8)[key] == 8
    assert made(8)["server-round"] == 4


@pytest.mark.parametrize("key", ["arrays", "config"])
def test_a_record_beside_the_model_takes_no_others_place(key):
    extra = {"beside": ArrayRecord(), key: ArrayRecord()}
    with pytest.raises(ConfigError, match=f"the record '{key}' that an aggregator"):
        wire.make_task(
            ArrayRecord(),
            {},
            wire.TaskConfig(4, 8),
            node_id=5,
            keys=wire.RecordKeys(),
            extra=extra,
        )


@pytest.mark.parametrize(
    ("work", "steps"),
    [(None, 10), (1.0, 10), (0.5, 5), (0.24, 2), (0.01, 1), (2.0, 20)],
)
def test_a_share_of_the_local_steps_is_one_at_least(work, steps):
    message = task(work=work)
    assert ("work-share" in message.content["config"]) == (work is not None)
    assert wire.read_task(message).steps(10) == steps
