import torch

from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.observers.unit_counts import UnitCounts
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.submodel import UnitGroup

HIDDEN = UnitGroup("hidden", 3, "internal")
STREAM = UnitGroup("stream", 5, "residual")


def order(rank, hidden, stream):
    return Order(
        number=0,
        device=0,
        node_id=0,
        rank=rank,
        num_ranks=8,
        round=1,
        indices={},
        shapes={},
        base_version=0,
        dispatched_at=0.0,
        due=0.0,
        cost=TaskCost(1.0, 0, 0),
        kept={HIDDEN: torch.tensor(hidden), STREAM: torch.tensor(stream)},
    )


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
    full = order(0, [0], [0])
    counts.add(Order(**{**vars(full), "kept": {}}))
    assert counts.record() is None
