"""Idle devices that are kept up to date, against looking at every device."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.fleet import relative_speeds, speed_order
from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.calendar import Calendar
from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.selection import Selection, Stratified, Uniform
from flwr_asyncdrop.wire import DeviceReport
from tests.nightly import examples

NODES = range(100, 112)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(speed_order, "_BLOCK", 3)
    monkeypatch.setattr(relative_speeds, "_MANY", 3)


def listed(fleet, taken, time, lost, by_rank):
    """Say who is idle by rank, by the rule."""
    idle = [d for d in fleet.readiness.idle(taken, time).tolist() if d not in lost]
    ranks = fleet.speeds.ranks if by_rank else np.zeros(len(fleet), int)
    num_ranks = fleet.num_ranks if by_rank else 1
    return [[d for d in idle if ranks[d] == rank] for rank in range(num_ranks)]


def filed(fleet, taken, time, lost, by_rank):
    """Say what the fleet has filed."""
    found = fleet.readiness.idle_devices(taken, time, lost=lost, by_rank=by_rank)
    return [
        [found.pick(rank, number) for number in range(found.count(rank))]
        for rank in range(found.num_ranks)
    ]


def naive_capability(fleet, device):
    slowness = fleet.speeds.slowness
    seconds, fastest = slowness[device], slowness.min()
    if seconds in (0, np.inf):
        return 1.0
    if fleet.profiles is None:
        fastest = max(fastest, np.median(slowness[np.isfinite(slowness)]) / 10)
    return 1.0 if seconds <= fastest else float(fastest / seconds)


def naive_times_faster(fleet, device):
    seconds, known = fleet.devices.seconds[device], np.array(fleet.devices.seconds)
    if seconds in (0, np.inf):
        return 1.0
    return np.median(known[np.isfinite(known)]) / seconds


DEVICE = st.integers(0, len(NODES) - 1)
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 40.0])
REPORTS = st.builds(
    DeviceReport,
    train_seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    capacity=st.sampled_from([0.0, 0.0, 0.0, 1.0, 3.0]),
)
EVENTS = st.one_of(
    st.tuples(st.just("nodes"), st.sets(st.sampled_from(NODES))),
    st.tuples(st.just("takes"), st.sets(DEVICE, max_size=4)),
    st.tuples(st.just("passes"), SECONDS),
    st.tuples(st.just("observe"), DEVICE, SECONDS),
    st.tuples(st.just("report"), DEVICE, REPORTS),
    st.tuples(st.just("quarantine"), DEVICE, SECONDS),
    st.tuples(st.just("probe"), DEVICE, SECONDS),
    st.tuples(st.just("answered"), DEVICE),
    st.tuples(st.just("clear"), DEVICE),
    st.tuples(st.just("rule_out"), DEVICE),
    st.tuples(st.just("lose"), DEVICE),
    st.tuples(st.just("update")),
    st.tuples(st.just("save")),
)
FLEETS = st.sampled_from(["real", "levels", "comers", "motley"])


def built(kind, num_ranks):
    profiles = {
        "real": None,
        "levels": speed_levels(10),
        "comers": speed_levels(10, availability=0.4),
        # Each its own period: too many for a calendar.
        "motley": [
            DeviceProfile(1.0, availability=Availability(3.0 + n, ((1.0, 2.5),)))
            for n in range(20)
        ],
    }[kind]
    return Fleet(num_ranks, profiles, model_bytes=(1000, 1000))


class Played:
    """A fleet to which things happen."""

    def __init__(self, kind, num_ranks):
        self.fleet = built(kind, num_ranks)
        self.fleet.refresh(NODES)
        self.time, self.taken, self.lost = 0.0, set(), []

    def play(self, name, *values):
        fleet, now = self.fleet, self.time
        if values and isinstance(values[0], int) and values[0] >= len(fleet):
            return
        match name, values:
            case "nodes", (nodes,):
                fleet.refresh(sorted(nodes))
            case "takes", (devices,):
                self.taken = devices
            case "passes", (seconds,):
                self.time += seconds
            case "observe", (device, seconds):
                fleet.observe(device, seconds, compute=1.0)
            case "report", (device, report):
                trip = Trip(0.0, 2.0, TaskCost(1.0, 100, 100))
                fleet.update_from_report(device, report, trip)
            case "quarantine", (device, seconds):
                fleet.readiness.quarantine(device, now + seconds)
            case "probe", (device, seconds):
                fleet.readiness.await_answer(device, now + seconds)
            case "answered", (device,):
                fleet.readiness.answered(device)
            case "clear", (device,):
                fleet.readiness.clear_failures(device)
            case "rule_out", (device,):
                fleet.readiness.rule_out(device)
            case "lose", (device,):
                self.lost.append(device)
            case "update", ():
                self.lost = []
            # A simulated fleet resumes only when as many nodes are there.
            case "save", () if not fleet.profiles or len(fleet.present) == len(fleet):
                fleet.load_state_dict(fleet.state_dict())


@settings(max_examples=examples(150), deadline=None)
@given(FLEETS, st.integers(1, 5), st.lists(EVENTS, max_size=30))
def test_whatever_happens_the_same_devices_are_idle_in_the_same_order(
    kind, num_ranks, events
):
    played = Played(kind, num_ranks)
    for event in events:
        played.play(*event)
        fleet = played.fleet
        for by_rank in (True, False):
            for lost in (played.lost, []):
                state = played.taken, played.time, lost, by_rank
                assert filed(fleet, *state) == listed(fleet, *state)
        for device in range(len(fleet)):
            if fleet.present:
                assert fleet.speeds.rank(device) == fleet.speeds.ranks[device]
            assert fleet.speeds.capability(device) == naive_capability(fleet, device)
            assert fleet.speeds.times_faster(device) == naive_times_faster(
                fleet, device
            )


@pytest.mark.parametrize("by_rank", [True, False])
def test_devices_that_have_failed_are_idle_again_when_others_have_since(by_rank):
    played = Played("levels", 2)
    for event in (("lose", 1), ("lose", 2), ("update",), ("lose", 3)):
        played.play(*event)
        state = set(), 0.0, played.lost, by_rank
        assert filed(played.fleet, *state) == listed(played.fleet, *state)


def test_a_speed_counts_though_nobody_has_asked_for_a_rank_yet():
    fleet = built("real", 2)
    fleet.refresh([1, 2])
    state = set(), 0.0, [], True
    assert filed(fleet, *state) == listed(fleet, *state) == [[0], [1]]
    fleet.observe(0, 5.0, compute=1.0)
    fleet.observe(1, 1.0, compute=1.0)
    assert filed(fleet, *state) == listed(fleet, *state) == [[1], [0]]


@settings(max_examples=examples(60), deadline=None)
@given(FLEETS, st.integers(1, 4), st.lists(EVENTS, max_size=8), st.integers(0, 99))
def test_a_quick_selection_chooses_what_the_plain_one_does(
    kind, num_ranks, events, seed
):
    played = Played(kind, num_ranks)
    for event in events:
        played.play(*event)
    fleet, busy = played.fleet, [seed % num_ranks]
    idle = fleet.readiness.idle(played.taken, played.time)
    for selection in (Stratified(), Uniform()):
        among = fleet.readiness.idle_devices(
            played.taken, played.time, by_rank=selection.by_rank
        )
        plain, quick = np.random.default_rng(seed), np.random.default_rng(seed)
        chosen = selection.choose_idle(among, busy, quick)
        if not len(idle):
            assert chosen is None
            continue
        assert chosen == selection.choose(idle, fleet.speeds.ranks, busy, plain)
        assert plain.random() == quick.random()


def test_one_that_changes_the_choice_alone_is_asked_plainly():
    class Last(Stratified):
        def choose(self, idle, ranks, busy_ranks, generator):
            return int(idle[-1])

    class Other(Last):
        pass

    assert [Stratified.is_quick, Uniform.is_quick] == [True, True]
    assert [Last.is_quick, Other.is_quick] == [False, False]
    assert not hasattr(Selection, "is_quick")


SHARES = st.tuples(st.floats(0.05, 0.95), st.floats(0, 0.99))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(SHARES, min_size=1, max_size=6),
    st.sampled_from([1.0, 0.1, 7.3, 86400.0]),
    st.lists(st.floats(0, 5), max_size=12),
)
def test_a_calendar_follows_each_device(shares, period, steps):
    devices = [Availability.from_share(share, period, at) for share, at in shares]
    calendar, time = Calendar([None, *devices]), 0.0
    moments = sorted(start for device in devices for start, _ in device.intervals)
    for step in steps:
        # Now and then exactly when one comes or goes, in some later period.
        time += step * period
        exact = math.floor(time / period) * period + moments[len(steps) % len(moments)]
        for now in (time, max(time, exact), max(time, np.nextafter(exact, 0))):
            calendar.move_to(now)
            there = [device.earliest(now) == now for device in devices]
            assert (calendar.there > 0).tolist() == [True, *there]


def test_a_calendar_is_for_few_periods():
    own = [Availability(1.0 + number, ((0.0, 0.5),)) for number in range(20)]
    assert Calendar.suits(own[:5] * 100)
    assert not Calendar.suits(own)
