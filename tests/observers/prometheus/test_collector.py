from threading import Lock

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.prometheus.collector import RunCollector
from flwr_asyncdrop.observers.prometheus.tallies import BOUNDS, Tallies
from flwr_asyncdrop.server.state import RunState
from tests.observers.orders import order_of

RANKS = st.lists(st.integers(0, 31), max_size=12)


def samples(metrics):
    """Return the values of all samples but when they began, by name and labels."""
    return {
        (sample.name, *map(sample.labels.get, sorted(sample.labels))): sample.value
        for metric in metrics
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


def values(state, fleet, tallies=None):
    """Return what a scrape finds."""
    tallies = tallies or Tallies()
    collector = RunCollector(state, fleet, tallies, Lock(), info={}, devices_up_to=0)
    return samples(collector.collect())


def tasks_of(ranks):
    return {f"m{number}": order_of(rank, 32) for number, rank in enumerate(ranks)}


@given(in_flight=RANKS, late=RANKS, waiting=RANKS)
def test_tasks_by_speed_group_are_those_of_the_state(in_flight, late, waiting):
    state = RunState.start_from({}, seed=0)
    state.in_flight, state.late = tasks_of(in_flight), tasks_of(late)
    state.waiting = list(tasks_of(waiting).values())
    found = values(state, Fleet(32))
    for name, ranks in (
        ("in_flight", in_flight),
        ("late", late),
        ("waiting", waiting),
    ):
        for group in range(16):
            pair = sum(rank // 2 == group for rank in ranks)
            assert found[f"asyncdrop_{name}_tasks", str(group)] == pair
    assert ("asyncdrop_late_tasks", "16") not in found


def test_who_is_connected_and_who_gets_no_task_and_why():
    fleet = Fleet(2)
    fleet.refresh([10, 20, 30, 40])
    fleet.refresh([10, 30])
    fleet.readiness.quarantined_until = {0: 5.0, 1: 9.0}
    fleet.readiness.probed_until = {2: 5.0}
    fleet.readiness.too_small = {1, 2, 3}
    state = RunState.start_from({}, seed=0)
    counts = []
    for state.time in (0.0, 5.0, 9.0):
        found = values(state, fleet)
        names = ("known", "connected", "quarantined", "probing", "too_small")
        counts.append([found[(f"asyncdrop_{name}_devices",)] for name in names])
    assert counts == [[4, 2, 2, 1, 3], [4, 2, 1, 0, 3], [4, 2, 0, 0, 3]]


@given(st.lists(st.sampled_from([0, 0.1, 0.11, 1, 2, 255, 256, 3600.5, 1e9])))
def test_histograms_are_those_of_the_library(observed):
    name = "task_duration_seconds"
    tallies = Tallies()
    full = f"asyncdrop_{name}"
    expected = Histogram(full, "", ["tier"], buckets=BOUNDS[name], registry=None)
    for group in "01":
        expected.labels(group)
    for value in observed:
        tallies.observe(name, 1, value)
        expected.labels("1").observe(value)
    found = values(RunState.start_from({}, seed=0), Fleet(2), tallies)
    shown = {key: value for key, value in found.items() if key[0].startswith(full)}
    assert shown == samples(expected.collect())
