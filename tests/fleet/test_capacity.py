"""What is known of real devices, worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.fleet.capacity import Capacity, Leg, Trip, smoothed
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.wire import DeviceReport

MB = 1_000_000


def test_an_average_begins_with_its_first_value():
    assert smoothed(math.inf, 4.0) == 4.0
    assert smoothed(4.0, 14.0) == pytest.approx(4.0 + 0.3 * 10.0)


class TestLeg:
    def test_its_bandwidth_is_what_bytes_take_beyond_the_smallest_message(self):
        # Its clock is 100 s behind, and any message takes 2 s: 10 MB take 5 s more.
        leg = Leg()
        leg.observe(0, -98.0)
        leg.observe(10 * MB, -93.0)
        assert leg.bytes_per_second == 2 * MB

    def test_polls_only_add_so_the_quickest_counts(self):
        leg = Leg()
        for seconds in (3.0, 2.0, 4.0):
            leg.observe(0, seconds)
        for seconds in (9.0, 7.0, 8.0):
            leg.observe(10 * MB, seconds)
        assert leg.bytes_per_second == 2 * MB

    def test_only_the_last_eight_count(self):
        leg = Leg()
        leg.observe(0, 0.0)
        leg.observe(MB, 0.25)
        for _ in range(8):
            leg.observe(MB, 0.5)
        assert leg.bytes_per_second == 2 * MB
        assert len(leg.recent) == 8

    def test_nothing_is_known_without_two_sizes(self):
        leg = Leg()
        for _ in range(3):
            leg.observe(MB, 2.0)
        assert leg.bytes_per_second == math.inf

    def test_a_link_too_fast_to_be_seen_is_infinite(self):
        leg = Leg()
        leg.observe(0, 3.0)
        leg.observe(MB, 2.5)
        assert leg.bytes_per_second == math.inf

    @given(
        st.floats(1e4, 1e9),
        st.floats(-1e9, 1e9),
        st.lists(st.floats(0, 3), min_size=1, max_size=8),
    )
    def test_it_never_seems_faster_than_it_is(self, bandwidth, offset, polls):
        """With a probe that no poll delayed, and any delays after it."""
        leg = Leg()
        leg.observe(0, offset)
        for poll in polls:
            leg.observe(100 * MB, offset + poll + 100 * MB / bandwidth)
        # The clocks' offset costs digits.
        least = 100 * MB / bandwidth + min(polls)
        assert leg.bytes_per_second == pytest.approx(100 * MB / least, rel=0.01)


class TestCapacity:
    def test_a_submodels_time_counts_for_the_full_model(self):
        capacity = Capacity()
        capacity.update_from_report(
            DeviceReport(3.0), Trip(0.0, 9.0, TaskCost(0.5, 0, 0))
        )
        assert capacity.train_seconds == 6.0
        assert capacity.task_seconds(MB, MB) == 6.0

    def test_it_follows_a_device_that_throttles(self):
        capacity, trip = Capacity(), Trip(0.0, 9.0, TaskCost(1.0, 0, 0))
        for seconds in (1.0, 1.0, 2.0, 2.0, 2.0):
            capacity.update_from_report(DeviceReport(seconds), trip)
        assert capacity.train_seconds == pytest.approx(2 - 0.7**3)

    def test_transfers_are_part_of_a_task(self):
        # Greeted at 0: 1 s down, 1 s up. The task's 4 MB take 2 s down, 4 s up.
        capacity = Capacity()
        probe = Trip(0.0, 2.0, TaskCost(1.0, 0, 0))
        capacity.update_from_report(DeviceReport(10.0, 1.0, 1.0), probe)
        task = Trip(10.0, 27.0, TaskCost(1.0, 4 * MB, 4 * MB))
        capacity.update_from_report(DeviceReport(10.0, 12.0 + 1.0, 22.0), task)
        assert capacity.bytes_per_second_down == 2 * MB
        assert capacity.bytes_per_second_up == 1 * MB
        assert capacity.task_seconds(8 * MB, 8 * MB) == 10.0 + 4.0 + 8.0

    @pytest.mark.parametrize("jump", [-30_000.0, -3.0, 3.0, 30_000.0])
    def test_a_clock_that_is_set_while_the_run_goes_on(self, jump):
        # As a computer's that slept, or the server's own. 20 MB take 2 s each way.
        capacity, offset = Capacity(), 5000.0
        for number in range(21):
            size = 20 * MB if number else 0
            offset += jump if number == 6 else 0.0
            transfer, sent = size / (10 * MB), 100.0 * number
            received = sent + 0.1 + transfer
            report = DeviceReport(10.0, received + offset, received + offset + 10.0)
            trip = Trip(sent, received + 10.1 + transfer, TaskCost(1.0, size, size))
            capacity.update_from_report(report, trip)
            if size:
                assert 10.0 <= capacity.task_seconds(size, size) <= 14.5
        # The last eight came after it.
        assert capacity.task_seconds(size, size) > 13.0

    def test_what_is_declared_overrides(self):
        capacity = Capacity()
        report = DeviceReport(1.0, memory=50.0, capacity=2.0, bandwidth=float(MB))
        capacity.update_from_report(report, Trip(0.0, 9.0, TaskCost(1.0, 0, 0)))
        assert capacity.declared == 2.0
        assert capacity.task_seconds(3 * MB, 3 * MB) == 1.0 + 3.0 + 3.0
        assert capacity.most_bytes == 10.0

    def test_nothing_is_known_of_a_device_that_says_nothing(self):
        capacity = Capacity()
        capacity.update_from_report(DeviceReport(), Trip(0.0, 9.0, TaskCost(1.0, 0, 0)))
        assert capacity == Capacity()
        assert capacity.most_bytes == math.inf


class TestRanks:
    @staticmethod
    def fleet(*reports, model_bytes=0):
        fleet = Fleet(len(reports), model_bytes=(model_bytes, model_bytes))
        fleet.refresh(range(len(reports)))
        for device, report in enumerate(reports):
            if report is not None:
                trip = Trip(0.0, 30.0, TaskCost(1.0, 0, 0))
                fleet.update_from_report(device, report, trip)
        return fleet

    def test_local_steps_decide_and_not_what_flower_takes(self):
        fleet = self.fleet(DeviceReport(2.0), DeviceReport(1.0))
        fleet.observe(0, seconds=5.0, compute=1.0)
        fleet.observe(1, seconds=8.0, compute=1.0)
        assert fleet.speeds.ranks.tolist() == [1, 0]
        assert fleet.speeds.capability(0) == 0.5

    def test_a_device_that_reports_nothing_goes_by_its_turnaround(self):
        fleet = self.fleet(DeviceReport(2.0), None, DeviceReport(9.0))
        fleet.observe(1, seconds=5.0, compute=1.0)
        assert fleet.speeds.ranks.tolist() == [0, 1, 2]

    def test_declared_speeds_alone_decide_if_all_declare_one(self):
        fleet = self.fleet(*(DeviceReport(capacity=c) for c in (1.0, 5.0, 2.5)))
        assert fleet.speeds.ranks.tolist() == [2, 0, 1]

    def test_a_declared_speed_overrides_what_is_measured(self):
        reports = [DeviceReport(1.0, capacity=1.0), DeviceReport(4.0, capacity=2.0)]
        assert self.fleet(*reports).speeds.ranks.tolist() == [1, 0]

    def test_declared_and_measured_devices_compare_by_the_median_of_those_that_do_both(
        self,
    ):
        # Work of the declared ones: 8 s x 1, 3 s x 2 and unknown: 7 in the median, so
        # they count as 7, 3.5 and 1.75 s; the measured one lies between.
        fleet = self.fleet(
            DeviceReport(8.0, capacity=1.0),
            DeviceReport(3.0, capacity=2.0),
            DeviceReport(capacity=4.0),
            DeviceReport(5.0),
        )
        assert fleet.speeds.slowness.tolist() == [7.0, 3.5, 1.75, 5.0]
        assert fleet.speeds.ranks.tolist() == [3, 1, 0, 2]

    def test_links_are_measured_again_when_a_run_resumes_an_hour_later(self):
        """The run's clock stands still until then, and that of the device does not."""
        fleet, sizes = Fleet(1, model_bytes=(MB, MB)), TaskCost(1.0, 4 * MB, 4 * MB)
        fleet.refresh([7])
        for offset in (0.0, 3600.0):
            resumed = Fleet(1, model_bytes=(MB, MB))
            resumed.refresh([7])
            if offset:
                resumed.load_state_dict(fleet.state_dict())
            fleet = resumed
            probe = DeviceReport(10.0, offset + 1.0, offset + 1.0)
            fleet.update_from_report(0, probe, Trip(0.0, 2.0, TaskCost(1.0, 0, 0)))
            for _ in range(8):
                task = DeviceReport(10.0, offset + 3.0, offset + 13.0)
                fleet.update_from_report(0, task, Trip(0.0, 18.0, sizes))
            link = fleet.devices.link(0, 1.0)
            assert link.bytes_per_second_down == 2 * MB
            assert link.bytes_per_second_up == 1 * MB

    def test_simulated_devices_keep_their_profiles(self):
        fleet = Fleet(2, [DeviceProfile(1.0), DeviceProfile(2.0)])
        fleet.refresh([1, 2])
        fleet.update_from_report(
            0, DeviceReport(99.0), Trip(0.0, 1.0, TaskCost(1.0, 0, 0))
        )
        assert fleet.speeds.ranks.tolist() == [0, 1]
        assert fleet.devices.capacities == {}
