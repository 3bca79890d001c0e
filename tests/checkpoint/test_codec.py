"""What is saved is what is read, for every kind that a checkpoint can hold."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flwr_asyncdrop.checkpoint.codec import decode, encode


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


@dataclass
class Things:
    truth: bool = True
    word: str = "é"
    side: Literal["left", "right"] = "left"
    maybe: Point | None = None
    table: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    points: Mapping[Point, Tensor] = field(default_factory=dict)
    pairs: list[tuple[int, Point]] = field(default_factory=list)
    sizes: Sequence[tuple[int, ...]] = ()
    anything: dict[str, Any] = field(default_factory=dict)


def there_and_back(value, kind):
    tensors = {}
    text = json.dumps(encode(value, kind, "root", tensors))
    return decode(json.loads(text), kind, tensors)


def test_a_dataclass_comes_back_with_everything_in_it():
    tensor = torch.arange(3)
    value = Things(
        truth=False,
        maybe=Point(1, math.inf),
        table={"w": {0: tensor}},
        points={Point(2): tensor},
        pairs=[(1, Point(3))],
        sizes=[(2, 3), ()],
        anything={"metrics": {"loss": 0.1, "n": [1, None]}},
    )
    back = there_and_back(value, Things)
    assert back == value
    assert back.table["w"][0] is tensor


def test_json_and_the_names_of_the_tensors_say_where_things_are():
    tensors = {}
    value = {"w": {1: torch.ones(2)}}
    written = encode(value, dict[str, dict[int, Tensor]], "state", tensors)
    assert written == {"w": [[1, "state/w/0"]]}
    assert list(tensors) == ["state/w/0"]


def test_a_tensor_that_several_hold_is_saved_once_and_shared_again():
    shared, tensors = torch.ones(3), {}
    first = encode([shared, torch.ones(3)], list[Tensor], "first", tensors)
    second = encode([shared], list[Tensor], "second", tensors)
    assert len(tensors) == 2
    one, other = decode(first, list[Tensor], tensors)
    (again,) = decode(second, list[Tensor], tensors)
    assert one is again is shared
    assert one is not other


@pytest.mark.parametrize(
    "record",
    [
        MetricRecord({"n": 1, "loss": 1.0, "curve": [0.5, 1.5], "counts": [1, 2]}),
        RecordDict({"metrics": MetricRecord({"n": 1}), "empty": MetricRecord()}),
    ],
)
def test_flowers_metrics_come_back_with_their_types(record):
    back = there_and_back(record, type(record))
    assert back == record
    assert repr(back) == repr(record)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(
    st.recursive(plain, lambda part: st.lists(part) | st.dictionaries(st.text(), part))
)
def test_any_json_comes_back(value):
    assert repr(there_and_back(value, Any)) == repr(value)


@given(st.dictionaries(st.integers(), st.floats(allow_nan=False)))
def test_keys_that_are_numbers_stay_numbers_and_in_their_order(value):
    back = there_and_back(value, dict[int, float])
    assert list(back.items()) == list(value.items())


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ({1, 2}, set[int], "root: .*set.* cannot be saved"),
        ({"a": object()}, dict[str, Any], "root/a: <object"),
        ([1, "2"], list[int], "root/1: '2' is not"),
        ({1: 2}, dict[str, int], "root: 1 is not"),
        (1, int | str, "not one kind"),
        (RecordDict({"a": ArrayRecord()}), RecordDict, "only metric records"),
        ((1, 2), tuple[int], "shorter than"),
    ],
)
def test_what_cannot_be_saved_is_an_error_when_it_is_saved(value, kind, says):
    with pytest.raises((TypeError, ValueError), match=says):
        encode(value, kind, "root", {})


@pytest.mark.parametrize(
    ("json", "says"),
    [
        ({"x": 1}, "other fields: y"),
        ({"x": 1, "y": 2.0, "z": 3}, "other fields: z"),
    ],
)
def test_a_dataclass_with_other_fields_is_refused(json, says):
    with pytest.raises(ValueError, match=says):
        decode(json, Point, {})
