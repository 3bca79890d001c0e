from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.prometheus.snapshot import Snapshot
from flwr_asyncdrop.server.state import RunState
from tests.observers.test_progress import ORDER

RANKS = st.lists(st.integers(0, 7), max_size=12)


def values(state, fleet, most_tiers):
    snapshot = Snapshot(state, fleet, Counter(), most_tiers=most_tiers, devices_up_to=0)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in snapshot.collect()
        for sample in metric.samples
    }


@given(in_flight=RANKS, late=RANKS, waiting=RANKS)
def test_tasks_by_tier_are_those_of_the_state(in_flight, late, waiting):
    state = RunState.start_from({}, seed=0)
    state.in_flight = {f"m{i}": replace(ORDER, rank=r) for i, r in enumerate(in_flight)}
    state.late = {f"l{i}": replace(ORDER, rank=r) for i, r in enumerate(late)}
    state.waiting = [replace(ORDER, rank=rank) for rank in waiting]
    found = values(state, Fleet(8), most_tiers=4)
    for name, ranks in (
        ("in_flight", in_flight),
        ("late", late),
        ("waiting", waiting),
    ):
        for tier in range(4):
            pair = sum(rank // 2 == tier for rank in ranks)
            assert found[f"asyncdrop_{name}_tasks", str(tier)] == pair
    assert ("asyncdrop_late_tasks", "4") not in found


def test_who_is_connected_and_who_is_left_alone():
    fleet = Fleet(2)
    fleet.refresh([10, 20, 30])
    fleet.refresh([10, 30])
    fleet.quarantined_until = {0: 5.0, 1: 9.0}
    state = RunState.start_from({}, seed=0)
    counts = []
    for state.time in (0.0, 5.0, 9.0):
        found = values(state, fleet, most_tiers=2)
        counts.append(
            [
                found[(f"asyncdrop_{name}_devices",)]
                for name in ("known", "connected", "quarantined")
            ]
        )
    assert counts == [[3, 2, 2], [3, 2, 1], [3, 2, 0]]
