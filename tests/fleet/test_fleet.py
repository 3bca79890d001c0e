from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.selection import Stratified, Uniform
from flwr_asyncdrop.wire import DeviceReport


def fleet_of(seconds, num_ranks):
    fleet = Fleet(num_ranks, [DeviceProfile(s) for s in seconds])
    fleet.refresh(range(100, 100 + len(seconds)))
    return fleet


def test_ranks_follow_the_speed():
    # Fastest first: devices 2 (1 s), 0 (2 s), 3 (3 s), 1 (4 s); two to a rank.
    assert fleet_of([2, 4, 1, 3], num_ranks=2).speeds.ranks.tolist() == [0, 1, 0, 1]


def test_equal_speeds_rank_by_index():
    assert fleet_of([1, 1, 1, 1], num_ranks=4).speeds.ranks.tolist() == [0, 1, 2, 3]


def test_ranks_of_the_papers_fleet_are_its_speed_levels():
    fleet = Fleet(8, speed_levels(104))
    fleet.refresh(range(104))
    assert fleet.speeds.ranks.tolist() == [device // 13 for device in range(104)]


def test_nodes_join_leave_and_return_as_the_same_device():
    fleet = Fleet(num_ranks=2)
    fleet.refresh([30, 10])
    assert fleet.node_ids == [10, 30]
    fleet.refresh([30, 20])
    assert fleet.node_ids == [10, 30, 20]
    assert fleet.readiness.idle((), 0.0).tolist() == [1, 2]
    fleet.refresh([10, 20, 30])
    assert fleet.node_ids == [10, 30, 20]
    assert fleet.readiness.idle({1}, 0.0).tolist() == [0, 2]


def test_a_simulated_fleet_ignores_nodes_beyond_its_profiles():
    fleet = Fleet(2, [DeviceProfile(1.0), DeviceProfile(2.0)])
    fleet.refresh([1, 2, 3])
    assert fleet.node_ids == [1, 2]


def test_nodes_that_join_a_simulated_fleet_play_the_devices_whose_nodes_have_gone():
    fleet = fleet_of([1, 2, 3], num_ranks=3)
    fleet.readiness.record_failure(1)
    fleet.readiness.quarantine(1, 50.0)
    fleet.refresh([100, 7, 9, 8])
    assert fleet.node_ids == [100, 7, 8]
    assert fleet.readiness.idle((), 0.0).tolist() == [0, 1, 2]
    assert fleet.readiness.record_failure(1) == 1


def test_ranks_are_those_of_the_devices_that_are_connected():
    fleet = Fleet(num_ranks=2)
    fleet.refresh([1, 2, 3, 4])
    for device, seconds in enumerate((1.0, 2.0, 3.0, 4.0)):
        fleet.observe(device, seconds, compute=1.0)
    assert fleet.speeds.ranks.tolist() == [0, 0, 1, 1]
    fleet.refresh([3, 4])
    assert fleet.speeds.ranks.tolist() == [1, 1, 0, 1]


class TestQuarantine:
    def test_a_device_in_quarantine_is_not_idle_until_its_release(self):
        fleet = fleet_of([1, 2, 3], num_ranks=3)
        fleet.readiness.quarantine(1, 9.0)
        assert fleet.readiness.idle((), 8.9).tolist() == [0, 2]
        assert fleet.readiness.idle((), 9.0).tolist() == [0, 1, 2]
        assert fleet.connected().tolist() == [0, 1, 2]
        assert fleet.readiness.next_return({0, 2}, 3.0) == 9.0
        assert fleet.readiness.next_return({0, 1, 2}, 3.0) == np.inf

    def test_one_that_is_away_at_its_release_comes_after_it(self):
        fleet = comers_and_goers()
        fleet.readiness.quarantine(
            0, 5.0
        )  # it is there from 0 to 4 s and from 10 to 14 s
        assert fleet.readiness.next_return({1, 2}, 1.0) == 10.0

    def test_failures_are_counted_in_a_row(self):
        fleet = fleet_of([1, 2], num_ranks=2)
        assert [
            fleet.readiness.record_failure(0),
            fleet.readiness.record_failure(1),
            fleet.readiness.record_failure(0),
        ] == [1, 1, 2]
        fleet.readiness.quarantine(0, 9.0)
        fleet.readiness.clear_failures(0)
        assert fleet.readiness.idle((), 0.0).tolist() == [0, 1]
        assert [
            fleet.readiness.record_failure(0),
            fleet.readiness.record_failure(1),
        ] == [1, 2]


class TestExpectedDuration:
    def test_a_profile_says_it_without_jitter(self):
        fleet = Fleet(1, [DeviceProfile(4.0, latency=1.0, jitter=2.0)])
        fleet.refresh([1])
        assert fleet.devices.expected(0, TaskCost(0.5, 10, 10)) == 4.0

    def test_a_real_device_is_expected_to_be_as_fast_as_so_far(self):
        fleet = Fleet(1)
        fleet.refresh([1])
        assert fleet.devices.expected(0, TaskCost(1.0, 0, 0)) is None
        fleet.observe(0, seconds=40.0, compute=0.5)
        assert fleet.devices.expected(0, TaskCost(1.0, 0, 0)) == 80.0
        assert fleet.devices.expected(0, TaskCost(0.25, 0, 0)) == 20.0
        assert fleet.devices.expected(0, TaskCost(0.01, 0, 0)) == 10.0


def comers_and_goers():
    """Two devices with a pattern of 10 s, and one that is always there."""
    early, late = (Availability(10.0, (when,)) for when in ((0.0, 4.0), (3.0, 6.0)))
    fleet = Fleet(
        3,
        [
            DeviceProfile(1.0, availability=early),
            DeviceProfile(2.0, availability=late),
            DeviceProfile(3.0),
        ],
    )
    fleet.refresh([1, 2, 3])
    return fleet


def test_a_device_is_idle_only_while_it_is_there():
    fleet = comers_and_goers()
    idle = {
        time: fleet.readiness.idle((), time).tolist()
        for time in (0.0, 3.0, 5.0, 8.0, 13.0)
    }
    assert idle == {
        0.0: [0, 2],
        3.0: [0, 1, 2],
        5.0: [1, 2],
        8.0: [2],
        13.0: [0, 1, 2],
    }
    assert fleet.readiness.idle({2}, 8.0).tolist() == []
    assert fleet.connected().tolist() == [0, 1, 2]


def test_the_next_return_is_that_of_a_free_and_connected_device():
    fleet = comers_and_goers()
    assert fleet.readiness.next_return({2}, 8.0) == 10.0
    assert fleet.readiness.next_return({0, 2}, 8.0) == 13.0
    assert fleet.readiness.next_return({0, 1, 2}, 8.0) == np.inf
    assert fleet.readiness.next_return((), 8.0) == 8.0
    fleet.refresh([2])
    assert fleet.readiness.next_return((), 8.0) == 13.0


def test_nobody_is_waited_for_if_all_who_are_connected_are_busy():
    assert fleet_of([1, 2], num_ranks=2).readiness.next_return({0, 1}, 5.0) == np.inf
    real = Fleet(num_ranks=1)
    real.refresh([1])
    assert real.readiness.next_return({0}, 5.0) == np.inf
    assert real.readiness.next_return((), 5.0) == 5.0
    assert real.readiness.idle((), 5.0).tolist() == [0]


def test_speed_is_measured_when_it_is_not_declared():
    fleet = Fleet(num_ranks=3)
    fleet.refresh([1, 2, 3])
    fleet.observe(2, seconds=2.0, compute=0.5)  # 4 s for the full model
    assert fleet.speeds.ranks.tolist() == [1, 2, 0]
    fleet.observe(0, seconds=3.0, compute=1.0)
    assert fleet.speeds.ranks.tolist() == [0, 2, 1]
    fleet.observe(0, seconds=10.0, compute=1.0)  # 3 + 0.3 * 7 = 5.1 s
    assert fleet.speeds.ranks.tolist() == [1, 2, 0]


def test_capability_is_the_speed_over_that_of_the_fastest_as_measured_so_far():
    fleet = Fleet(2)
    fleet.refresh([1, 2])
    assert fleet.speeds.capability(0) == 1.0  # nothing is known yet
    fleet.observe(0, seconds=4.0, compute=1.0)
    fleet.observe(1, seconds=8.0, compute=1.0)
    assert [fleet.speeds.capability(device) for device in (0, 1)] == [1.0, 0.5]
    fleet.refresh([1, 2, 3])
    fleet.observe(2, seconds=2.0, compute=1.0)
    assert [fleet.speeds.capability(d) for d in (0, 1, 2)] == [0.5, 0.25, 1.0]


def test_how_many_times_faster_than_the_median_by_hand():
    fleet = Fleet(2)
    fleet.refresh([1, 2, 3])
    assert fleet.speeds.times_faster(0) == 1.0  # nothing is known yet
    for device, seconds in enumerate((4.0, 8.0)):
        fleet.observe(device, seconds=seconds, compute=1.0)
    assert [fleet.speeds.times_faster(d) for d in (0, 1, 2)] == [1.5, 0.75, 1.0]
    fleet.observe(2, seconds=40.0, compute=1.0)
    assert [fleet.speeds.times_faster(d) for d in (0, 1, 2)] == [2.0, 1.0, 0.2]
    assert fleet_of([1, 20, 30, 40], num_ranks=4).speeds.times_faster(0) == 25.0


@pytest.mark.parametrize("claim", [{"train_seconds": 5e-324}, {"capacity": 1e15}])
def test_who_claims_to_be_fast_is_as_fast_as_its_replies(claim):
    fleet = Fleet(4, model_bytes=(100, 100))
    fleet.refresh([1, 2, 3, 4])
    trip = Trip(0.0, 2.0, TaskCost(1.0, 100, 100))
    for device in range(4):
        fleet.observe(device, seconds=2.0 + device, compute=1.0)
        honest = dict.fromkeys(claim, 1.0)
        report = DeviceReport(**(honest if device else claim))
        fleet.update_from_report(device, report, trip)
    assert fleet.speeds.ranks.tolist()[0] == 0
    assert fleet.speeds.times_faster(0) == 3.5 / 2.0


@pytest.mark.parametrize("claim", [{"train_seconds": 5e-324}, {"capacity": 1e15}])
def test_a_device_that_claims_to_be_fast_makes_nothing_of_no_other(claim):
    fleet = Fleet(4, model_bytes=(100, 100))
    fleet.refresh([1, 2, 3, 4])
    trip = Trip(0.0, 2.0, TaskCost(1.0, 100, 100))
    for device in (1, 2, 3):
        honest = dict.fromkeys(claim, 1.0)
        fleet.update_from_report(device, DeviceReport(**honest), trip)
    fleet.update_from_report(0, DeviceReport(**claim), trip)
    assert fleet.speeds.ranks.tolist()[0] == 0
    assert fleet.speeds.capability(0) == 1.0
    assert [fleet.speeds.capability(device) for device in (1, 2, 3)] == pytest.approx(
        [0.1] * 3
    )


def test_a_task_too_short_for_the_timer_says_nothing_about_capability():
    fleet = Fleet(num_ranks=2)
    fleet.refresh([1, 2])
    fleet.observe(0, seconds=0.0, compute=1.0)
    fleet.observe(1, seconds=2.0, compute=1.0)
    assert fleet.speeds.capability(0) == 1.0


def test_a_simulated_device_keeps_its_speed():
    fleet = fleet_of([1, 2], num_ranks=2)
    fleet.observe(0, seconds=99.0, compute=1.0)
    assert fleet.speeds.ranks.tolist() == [0, 1]


def generator(seed=0):
    return np.random.default_rng(seed)


@given(st.data())
def test_stratified_refills_the_rank_that_is_training_least(data):
    ranks = np.array([0, 0, 1, 1, 2, 2])
    busy = data.draw(st.sets(st.integers(0, 5), max_size=5))
    idle = np.array([device for device in range(6) if device not in busy])
    busy_ranks = [int(ranks[device]) for device in busy]
    device = Stratified().choose(idle, ranks, busy_ranks, generator())
    counts = Counter(busy_ranks)
    least = min(counts[int(rank)] for rank in ranks[idle])
    assert device in idle
    assert counts[int(ranks[device])] == least


def test_stratified_is_random_within_the_rank():
    ranks = np.array([0] * 10 + [1] * 10)
    chosen = {
        Stratified().choose(np.arange(20), ranks, [1], generator(s)) for s in range(200)
    }
    assert chosen == set(range(10))


def test_uniform_reaches_every_idle_device():
    idle = np.array([1, 4, 7])
    chosen = {
        Uniform().choose(idle, np.zeros(8, int), [], generator(s)) for s in range(60)
    }
    assert chosen == {1, 4, 7}


def test_same_seed_same_choice():
    ranks = np.zeros(100, int)
    for selection in (Stratified(), Uniform()):
        picks = [selection.choose(np.arange(100), ranks, [], generator(7))] * 2
        assert picks[0] == selection.choose(np.arange(100), ranks, [], generator(7))
        others = {
            selection.choose(np.arange(100), ranks, [], generator(s)) for s in range(9)
        }
        assert len(others) > 1


@pytest.mark.parametrize("size", [1, 7, 104, 10_000])
def test_every_rank_is_used_by_a_large_fleet(size):
    fleet = fleet_of(range(1, size + 1), num_ranks=8)
    assert len(set(fleet.speeds.ranks.tolist())) == min(size, 8)
    assert np.all(np.diff(fleet.speeds.ranks) >= 0)
