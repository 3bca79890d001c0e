import torch

from flwr_asyncdrop.observers.unit_counts import UnitCounts
from flwr_asyncdrop.submodel import UnitGroup
from tests.observers.orders import order_of
from tests.states import saved_and_read

HIDDEN = UnitGroup("hidden", 3, "internal")
STREAM = UnitGroup("stream", 5, "residual")


def order(rank, hidden, stream):
    kept = {HIDDEN: torch.tensor(hidden), STREAM: torch.tensor(stream)}
    return order_of(rank, kept=kept)


def counted(**settings):
    counts = UnitCounts(**settings)
    counts.add(order(4, [1, 2], [0, 4]))
    counts.add(order(1, [0, 2], [0, 1, 2]))
    counts.add(order(4, [0, 1], [4]))
    return counts.record()


def test_counts_by_hand():
    assert counted() == {
        "ranks": [1, 4],
        "updates": [1, 2],
        "bin": 1,
        "groups": [
            {"name": "hidden", "size": 3, "counts": [[1, 0, 1], [1, 2, 1]]},
            {
                "name": "stream",
                "size": 5,
                "counts": [[1, 1, 1, 0, 0], [1, 0, 0, 0, 2]],
            },
        ],
    }


def test_too_many_counts_are_pooled_and_none_is_lost():
    # 8 units of 2 ranks are 16 numbers: bins of 2 units bring them down to 10.
    record = counted(most_numbers=8)
    assert record["bin"] == 2
    hidden, stream = record["groups"]
    assert hidden == {"name": "hidden", "size": 3, "counts": [[1, 1], [3, 1]]}
    assert stream["counts"] == [[2, 1, 0], [1, 0, 2]]


def test_full_models_leave_no_record():
    counts = UnitCounts()
    counts.add(order_of(0))
    assert counts.record() is None


def test_counts_are_continued_from_a_state():
    counts, again = UnitCounts(), UnitCounts()
    counts.add(order(4, [1, 2], [0, 4]))
    saved = saved_and_read(counts.state_dict())
    for _ in range(2):
        again.load_state_dict(saved)
        assert again.record() == counts.record()
        again.add(order(1, [0, 2], [0, 1, 2]))
        again.add(order(4, [0, 1], [4]))
        assert again.record() == counted()
