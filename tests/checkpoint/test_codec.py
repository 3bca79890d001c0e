"""A state is packed as JSON and tensors, and comes back as it was."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.checkpoint.codec import pack, unpack
from flwr_asyncdrop.state_dict import ChangingState


def there_and_back(value):
    packed, tensors = pack(value)
    return unpack(json.loads(json.dumps(packed)), tensors)


def test_the_names_of_the_tensors_say_where_they_are():
    w, b = torch.ones(2), torch.zeros(1)
    packed, tensors = pack({"run": {"w": w}, "list": [1, {"b": b}]})
    assert packed == {
        "run": {"w": {"$": "run/w"}},
        "list": [1, {"b": {"$": "list/1/b"}}],
    }
    assert tensors == {"run/w": w, "list/1/b": b}


def test_tensors_whose_paths_look_alike_have_names_of_their_own():
    state = {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}}
    back = there_and_back(state)
    assert back["a/b"] is state["a/b"]
    assert back["a"]["b"] is state["a"]["b"]


def test_a_tensor_that_several_hold_is_saved_once_and_shared_again():
    shared = torch.ones(3)
    state = {"first": [shared, torch.ones(3)], "second": {"again": shared}}
    packed, tensors = pack(state)
    assert len(tensors) == 2
    back = unpack(packed, tensors)
    assert back["first"][0] is back["second"]["again"] is shared
    assert back["first"][0] is not back["first"][1]


@pytest.mark.parametrize(
    "state",
    [{"$": "w"}, {"$": {"$": "w"}}, {"$": None, "a": 1}, {"a": {"$": []}}, {"$": {}}],
)
def test_what_looks_like_a_tensor_is_none(state):
    assert there_and_back({"w": torch.ones(1), "state": state})["state"] == state


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.just("$")


@given(st.recursive(plain, lambda part: st.lists(part) | st.dictionaries(keys, part)))
def test_any_json_comes_back(value):
    assert repr(there_and_back(value)) == repr(value)


def test_what_changes_afterwards_does_not_change_what_was_packed():
    state = {"list": [1], "dict": {"a": 1}}
    packed, _ = pack(state)
    state["list"].append(2)
    state["dict"]["b"] = 2
    assert packed == {"list": [1], "dict": {"a": 1}}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": {1, 2}}, "a: {1, 2} cannot be saved in a checkpoint"),
        ({"a": [0, object()]}, "a/1: <object"),
        ({"a": {1: 2}}, "a has the key 1, which is not a string"),
        ({"a": b"raw"}, "a: b'raw'"),
        ({"a": torch.ones(2, device="meta")}, "a: a tensor on the device meta cannot"),
        ({"a": torch.eye(2).to_sparse()}, "a: a tensor of torch.sparse_coo cannot"),
    ],
)
def test_what_cannot_be_saved_is_an_error_when_it_is_saved(value, says):
    with pytest.raises(TypeError, match=says):
        pack(value)


@pytest.mark.parametrize("kind", [list, dict])
def test_what_has_too_many_parts_in_each_other_cannot_be_saved(kind):
    def nested(depth):
        inner = nested(depth - 1) if depth else 1.5
        return [inner] if kind is list else {"in": inner}

    assert there_and_back(nested(199)) == nested(199)
    with pytest.raises(TypeError, match="more than 200 dicts and lists inside of each"):
        pack(nested(500))


def test_one_list_in_two_places_is_no_list_in_itself():
    one = [1]
    assert there_and_back({"a": one, "b": [one, one]}) == {"a": [1], "b": [[1], [1]]}


def test_numbers_of_numpy_are_saved_as_pythons():
    state = {"step": np.int64(2), "shares": [np.float32(0.5), np.bool_(True)]}
    assert there_and_back(state) == {"step": 2, "shares": [0.5, True]}


def test_what_cannot_be_saved_is_named_with_what_can():
    with pytest.raises(TypeError, match=r"^counts: array.*lists and dicts can"):
        pack({"counts": np.zeros(2)})


def test_tensors_that_change_in_place_are_copied_and_no_others():
    """A thread writes them later, while the run goes on."""
    inside, both, outside = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    changing = ChangingState({"deep": [{"inside": inside}], "both": both})
    json, tensors = pack({"both": both, "changing": changing, "outside": outside})
    for tensor in (inside, both, outside):
        tensor += 1
    state = unpack(json, tensors)
    assert state["changing"]["deep"][0]["inside"].tolist() == [0, 0]
    assert state["both"] is state["changing"]["both"]
    assert state["both"].tolist() == [0, 0]
    assert state["outside"] is outside
