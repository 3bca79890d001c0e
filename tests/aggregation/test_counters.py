"""How far one task may move a counter."""

import pytest
import torch

from flwr_asyncdrop.aggregation import check_counters
from flwr_asyncdrop.aggregation.counters import MOST_COUNTED
from flwr_asyncdrop.exceptions import ReplyError


def counter(value, dtype=torch.int64):
    return {"bn.num_batches_tracked": torch.tensor(value, dtype=dtype)}


@pytest.mark.parametrize("value", [0, 7, 50, MOST_COUNTED + 7])
def test_what_a_task_can_count(value):
    check_counters(counter(7), counter(value))


@pytest.mark.parametrize("value", [MOST_COUNTED + 8, 2**62, 2**63 - 1])
def test_what_it_cannot(value):
    with pytest.raises(ReplyError, match="a task can add 1,048,576 at") as caught:
        check_counters(counter(7), counter(value))
    assert caught.value.kind == "counter"


def test_a_counter_of_fewer_bits():
    with pytest.raises(ReplyError):
        check_counters(counter(7, torch.int32), counter(2**31 - 1, torch.int32))
    check_counters(counter(2**31 - 2, torch.int32), counter(2**31 - 1, torch.int32))


def test_what_is_no_counter_is_not_looked_at():
    state = {"w": torch.ones(2), "mask": torch.tensor([True, False])}
    arrays = {"w": torch.full((2,), 1e18), "mask": torch.tensor([True, True])}
    check_counters(state, arrays)


def test_counters_of_which_a_submodel_has_none():
    check_counters({"n": torch.arange(4)}, {"n": torch.arange(0)})
    check_counters({"n": torch.arange(0)}, {"n": torch.arange(0)})
