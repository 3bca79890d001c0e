"""What does not train is split off, known by its content, and put back."""

import hashlib
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flwr_asyncdrop.submodel import (
    Frozen,
    content_hash,
    declare_plan,
    plan_submodels,
    split,
    verify_plan,
)
from flwr_asyncdrop.submodel.types import frozen_of, tensors_of

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.complex64,
)


def test_the_hash_by_hand():
    tensors = {"b": torch.tensor([[1.0, -2.0]]), "a": torch.tensor(3, dtype=torch.int8)}
    content = b'["a", "torch.int8", []]\n' + b"\x03"
    content += b'["b", "torch.float32", [1, 2]]\n' + struct.pack("<ff", 1, -2)
    assert content_hash(tensors) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_one_and_no_two_share_it(dtype):
    hashes = {
        content_hash({"w": torch.zeros(shape, dtype=kind)})
        for kind in DTYPES
        for shape in ((), (0,), (2,), (2, 1))
    }
    assert len(hashes) == 4 * len(DTYPES)
    columns = torch.ones(3, 2, dtype=dtype).t()
    assert content_hash({"w": columns}) == content_hash({"w": columns.contiguous()})


@given(st.integers(0, 23), st.integers(0, 7))
def test_any_bit_is_another_content(byte, bit):
    weights = torch.arange(6.0)
    changed = weights.clone()
    changed.view(torch.uint8)[byte] ^= 1 << bit
    assert content_hash({"w": weights}) != content_hash({"w": changed})


def test_names_and_their_order():
    one, two = torch.ones(2), torch.zeros(2)
    assert content_hash({"a": one, "b": two}) == content_hash({"b": two, "a": one})
    assert content_hash({"a": one, "b": two}) != content_hash({"a": two, "b": one})
    assert content_hash({"a": one}) != content_hash({"a": one, "b": two[:0]})


def test_split_and_complete():
    state = {name: torch.full((2,), float(n)) for n, name in enumerate("abcd")}
    trained, frozen = split(state, {"a", "c"})
    assert list(trained) == ["b", "d"]
    assert frozen.sha256 == content_hash({"a": state["a"], "c": state["c"]})
    whole = frozen.complete({"d": trained["d"] + 1, "b": trained["b"]})
    assert {name: t[0].item() for name, t in whole.items()} == {
        "a": 0,
        "b": 1,
        "c": 2,
        "d": 4,
    }
    assert list(whole) == list("abcd")


def test_what_is_split_off_is_nobody_elses():
    state = {"a": torch.zeros(2), "b": torch.zeros(2)}
    _, frozen = split(state, {"a"})
    state["a"] += 1
    assert frozen.tensors["a"].tolist() == [0, 0]
    assert content_hash(frozen.tensors) == frozen.sha256


def test_nothing_frozen_changes_nothing():
    state = {"a": torch.zeros(2)}
    trained, frozen = split(state, ())
    assert trained is state
    assert frozen == Frozen()
    assert frozen.complete(trained) is trained


class TestPlans:
    """A frozen layer is narrowed like others; the report says that it stays."""

    def net(self, *, freeze):
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        net[0].requires_grad_(not freeze)
        return net

    def test_units_are_the_same(self):
        inputs = torch.zeros(1, 4)
        frozen = plan_submodels(self.net(freeze=True), inputs)
        whole = plan_submodels(self.net(freeze=False), inputs)
        assert frozen.groups == whole.groups
        assert frozen.axes.keys() == whole.axes.keys()
        assert frozen.frozen == {"0.weight", "0.bias"}
        assert whole.frozen == set()
        line = "does not train, nor travel: 68.2% of the elements"  # 30 of 44
        assert line in frozen.report()
        assert "travel" not in whole.report()

    def test_a_declared_plan_knows_when_it_is_verified(self):
        net = self.net(freeze=True)
        shapes = {name: tensor.shape for name, tensor in net.state_dict().items()}
        units = {"hidden": {"0.weight": 0, "0.bias": 0, "2.weight": 1}}
        plan = verify_plan(net, torch.zeros(1, 4), declare_plan(shapes, units))
        assert plan.frozen == {"0.weight", "0.bias"}

    def test_where_nothing_requires_a_gradient_all_counts(self):
        net = self.net(freeze=True).requires_grad_(False)
        assert frozen_of(tensors_of(net)) == set()


def test_a_single_number_with_a_stride_has_the_same_hash():
    strided = torch.tensor([[1.0, 2.0]])[:, 0]
    assert strided.stride() == (2,)
    expected = content_hash({"gain": torch.tensor([1.0])})
    assert content_hash({"gain": strided}) == expected
