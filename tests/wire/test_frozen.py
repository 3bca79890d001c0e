"""A task without its frozen tensors is the whole task again on the client."""

import math
from types import MappingProxyType

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.flower_internals.identity import assume_identity
from flwr_asyncdrop.submodel import extract, plan_submodels, silenced, split
from tests.nightly import examples
from tests.runs import mlp

assume_identity(run_id=1)

KEYS = wire.RecordKeys(arrays="model", config="settings")
STATE = mlp().state_dict()
PLAN = plan_submodels(mlp(), torch.zeros(1, 4))
NAMES = list(STATE)


def task(frozen, indices, *, masked=False, brings=False):
    """Return a task's message as the server writes it."""
    cut = silenced if masked else extract
    trained = {name: STATE[name] for name in NAMES if name not in frozen.tensors}
    mine = {name: dims for name, dims in indices.items() if name in trained}
    shapes = {name: tuple(tensor.shape) for name, tensor in STATE.items()}
    about = {
        **wire.kept_entries(indices, shapes, KEYS.arrays),
        **wire.frozen_entries(frozen, KEYS.arrays, masked=masked),
    }
    extra = {"beside": wire.to_record({"0.bias": torch.ones(2)})}
    if brings:
        extra[wire.FROZEN_RECORD] = wire.to_record(frozen.tensors)
    return wire.make_task(
        wire.to_record(cut(trained, mine)),
        {"lr": 0.5, **about},
        wire.TaskConfig(1, 7),
        node_id=5,
        keys=KEYS,
        extra=extra,
    )


def completed(message, frozen):
    part = wire.read_frozen(message)
    message.content = wire.without_brought(message.content)
    message.content, used = wire.completed(
        message, part, wire.to_record(frozen.tensors)
    )
    return message, used


@given(
    frozen=st.sets(st.sampled_from(NAMES), min_size=1, max_size=5),
    drop=st.sets(st.integers(0, 4)),
    masked=st.booleans(),
    brings=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_it_is_what_extracting_all_would_give(frozen, drop, masked, brings):
    first, second = PLAN.groups
    units = [
        torch.tensor([n for n in range(group.size) if n not in drop])
        for group in (first, second)
    ]
    indices = PLAN.indices(tuple(units)) if len(drop) < 5 else {}
    _, parted = split(STATE, frozen)
    message, _ = completed(task(parted, indices, masked=masked, brings=brings), parted)

    whole = (silenced if masked else extract)(STATE, indices)
    found = wire.from_record(message.content[KEYS.arrays])
    assert list(found) == NAMES, "some clients go by the order"
    for name, tensor in whole.items():
        assert torch.equal(found[name], tensor), name
    assert set(message.content) == {KEYS.arrays, KEYS.config, "beside"}
    kept = wire.read_kept(message)
    assert kept.indices.keys() == indices.keys()
    assert wire.read_config(message)["lr"] == 0.5
    assert wire.read_task(message).seed == 7
    assert wire.read_frozen(message) is None


def test_nothing_is_said_of_a_model_that_trains_as_a_whole():
    trained, frozen = split(STATE, ())
    assert wire.frozen_entries(frozen, "arrays") == {}
    record = wire.to_record(trained)
    assert wire.left_out(record, frozen, ArrayRecord(), "arrays") == (record, {})


class TestLeavingOut:
    """A whole model, as for an evaluation."""

    FROZEN = split(STATE, ("0.weight", "2.bias"))[1]
    SENT = wire.to_record(FROZEN.tensors)

    def leave(self, state):
        return wire.left_out(wire.to_record(state), self.FROZEN, self.SENT, "arrays")

    def test_the_frozen_tensors_go(self):
        arrays, entries = self.leave(STATE)
        assert list(arrays) == [n for n in NAMES if n not in self.FROZEN.tensors]
        assert entries == wire.frozen_entries(self.FROZEN, "arrays")

    @pytest.mark.parametrize(
        "state",
        [
            {**STATE, "0.weight": STATE["0.weight"] + 1},
            {**STATE, "0.weight": STATE["0.weight"].half()},
            {name: STATE[name] for name in reversed(NAMES)},
            {name: STATE[name] for name in NAMES[1:]},
            {**STATE, "more": torch.zeros(1)},
        ],
        ids=["other values", "other dtype", "other order", "fewer", "more"],
    )
    def test_other_models_stay_whole(self, state):
        arrays, entries = self.leave(state)
        assert list(arrays) == list(state)
        assert entries == {}


class TestReplies:
    FROZEN = MappingProxyType(
        {"f": torch.tensor([1.0, -0.0, math.nan]), "n": torch.tensor([3])}
    )
    USED = wire.to_record(FROZEN)

    def left(self, **state):
        metrics = MetricRecord({"num-examples": 1})
        arrays = wire.to_record({"w": torch.ones(1), **state})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        left = wire.without_frozen(content, self.USED)
        assert left["metrics"] == metrics
        return list(left["arrays"])

    def test_what_is_the_same_does_not_travel(self):
        assert self.left(**self.FROZEN) == ["w"]
        assert self.left() == ["w"]
        assert self.left(n=torch.tensor([3], dtype=torch.int32)) == ["w"]

    def test_half_precision_and_the_sign_of_zero_are_no_change(self):
        assert self.left(f=self.FROZEN["f"].half()) == ["w"]
        assert self.left(f=torch.tensor([1.0, 0.0, math.nan])) == ["w"]

    @pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
    def test_nor_is_half_precision_that_is_sent_in_single(self, half):
        """Flower's records have no bfloat16: such a client replies in float32."""
        whole = torch.tensor([0.1, -1e-3, 70000.0, math.nan])
        used = wire.to_record({"f": whole})
        for found, is_same in ((whole.to(half).float(), True), (whole / 3, False)):
            reply = RecordDict({"arrays": wire.to_record({"f": found.clone()})})
            if is_same:
                assert not wire.without_frozen(reply, used)["arrays"]
            else:
                with pytest.raises(ConfigError, match="changed 'f'"):
                    wire.without_frozen(reply, used)

    @pytest.mark.parametrize(
        "changed",
        [
            {"f": torch.tensor([1.0, 1e-30, math.nan])},
            {"f": torch.tensor([1.0, 0.0, 0.0])},
            {"f": torch.tensor([math.nan, 0.0, math.nan])},
            {"f": torch.tensor([1.0, 0.0])},
            {"n": torch.tensor([4])},
        ],
    )
    def test_what_has_changed_is_refused_by_name(self, changed):
        (name,) = changed
        with pytest.raises(
            ConfigError, match=f"changed '{name}', which does not train"
        ):
            self.left(**changed)

    @pytest.mark.parametrize(
        ("name", "fix"),
        [
            ("bn.weight", "set requires_grad_"),
            ("bn.running_mean", "train with its layer in eval mode"),
            ("bn.num_batches_tracked", "train with its layer in eval mode"),
        ],
    )
    def test_statistics_move_without_gradients(self, name, fix):
        before, after = (wire.to_record({name: torch.ones(1) * n}) for n in (1, 2))
        with pytest.raises(ConfigError, match=f"changed '{name}', .*: {fix}"):
            wire.without_frozen(RecordDict({"arrays": after}), before)

    def test_of_several_the_first_is_named(self):
        names = [f"layer{number}" for number in range(9)]
        before, after = (
            wire.to_record(dict.fromkeys(names, torch.full((1,), value)))
            for value in (0.0, 1.0)
        )
        with pytest.raises(ConfigError, match="changed 'layer0'"):
            wire.without_frozen(RecordDict({"arrays": after}), before)


class TestAsking:
    MESSAGE = task(split(STATE, ("0.weight",))[1], {})

    def test_only_a_reply_that_asks_for_this_hash_asks(self):
        asked = wire.ask_for_frozen(self.MESSAGE, "12ab")
        assert wire.lacks_frozen(asked, "12ab")
        assert not wire.lacks_frozen(asked, "34cd")
        assert not wire.lacks_frozen(asked, "")
        other = Message(RecordDict({"c": ConfigRecord({})}), reply_to=self.MESSAGE)
        assert not wire.lacks_frozen(other, "12ab")

    def test_bringing_them_is_the_same_message_with_one_record_more(self):
        record = wire.to_record({"0.weight": STATE["0.weight"]})
        brought = wire.bring(self.MESSAGE, record)
        assert dict(brought.content) == {
            **self.MESSAGE.content,
            wire.FROZEN_RECORD: record,
        }
        for field in ("dst_node_id", "message_type", "ttl", "group_id"):
            was = getattr(self.MESSAGE.metadata, field)
            assert getattr(brought.metadata, field) == was
        assert wire.FROZEN_RECORD not in self.MESSAGE.content


def test_which_units_a_message_keeps_is_not_read_off_half_a_model():
    _, frozen = split(STATE, ("0.weight",))
    keep = (torch.arange(3), torch.arange(5))
    with pytest.raises(ConfigError, match="FrozenMod"):
        wire.read_kept(task(frozen, PLAN.indices(keep)))
