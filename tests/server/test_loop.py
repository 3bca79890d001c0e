from collections import Counter
from functools import partial
from traceback import format_exception

import numpy as np
import pytest
import torch
from flwr.app import Array
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import Buffered, LatestPerGroup
from flwr_asyncdrop.exceptions import Interrupted, RunError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.schedule import StepDecay
from tests.grids import HandlerGrid, RefusedError
from tests.nightly import examples
from tests.runs import Run, answer, failing, plus_one


def test_a_run_of_two_devices_worked_out_by_hand():
    """Alg. 1, W <- W/2 + W_i/2 with W_i = W + 1; device 0 takes 1 s, device 1 2.5 s.

    ====  ======  ====================  =====  =====  =========  ====================
    time  device  trained from          W_i    W      staleness  sent again
    ====  ======  ====================  =====  =====  =========  ====================
    1.0   0       version 0 (W = 0)     1.0    0.5    0          version 1, due at 2
    2.0   0       version 1 (W = 0.5)   1.5    1.0    0          version 2, due at 3
    2.5   1       version 0 (W = 0)     1.0    1.0    2          version 3, due at 5
    3.0   0       version 2 (W = 1.0)   2.0    1.5    1          version 4, due at 4
    4.0   0       version 4 (W = 1.5)   2.5    2.0    0          no: 1 left, 1 flying
    5.0   1       version 3 (W = 1.0)   2.0    2.0    2          no: the last of 6
    ====  ======  ====================  =====  =====  =========  ====================
    """
    grid = HandlerGrid(plus_one, node_ids=[7, 9])
    run = Run(grid, seconds=(1.0, 2.5)).go()
    merged = run.recorder.merged
    assert run.recorder.times == [1.0, 2.0, 2.5, 3.0, 4.0, 5.0]
    assert [m.order.device for m in merged] == [0, 0, 1, 0, 0, 1]
    assert [m.order.base_version for m in merged] == [0, 1, 0, 2, 4, 3]
    assert [m.staleness for m in merged] == [0, 0, 2, 1, 0, 2]
    assert [m.round for m in merged] == [1, 1, 2, 2, 3, 3]
    assert run.recorder.weights == [0.5, 1.0, 1.0, 1.5, 2.0, 2.0]
    assert run.recorder.rounds == [(1, 2), (2, 4), (3, 6)]
    assert [message.metadata.dst_node_id for message in grid.pushed] == [
        *(7, 9, 7, 7, 9, 7)
    ]
    state = run.state
    assert torch.equal(state.arrays["w"], torch.full((2,), 2.0))
    assert torch.equal(state.initial["w"], torch.zeros(2))
    assert (state.version, state.updates, state.dispatched) == (6, 6, 6)
    assert (state.fastest_updates, state.time, state.failures) == (4, 5.0, {})
    assert (
        state.bytes_up
        == state.bytes_down
        == sum(merged.order.cost.bytes_down for merged in merged)
    )


def test_arrivals_at_the_same_time_come_in_the_order_of_dispatch():
    # Devices of 2 and 3 s meet at t = 6: device 1, sent at 3, before 0, sent at 4.
    run = Run(HandlerGrid(plus_one, node_ids=[1, 2]), seconds=(2.0, 3.0)).go()
    arrivals = zip(
        run.recorder.times, (m.order.device for m in run.recorder.merged), strict=True
    )
    assert list(arrivals) == [(2, 0), (3, 1), (4, 0), (6, 1), (6, 0), (9, 1)]


def test_the_fastest_rank_alone_advances_the_learning_rate():
    # In the run above rank 0 merges at 1, 2, 3 and 4 s: its third update, at 3 s and
    # the fourth of all, reaches the milestone. The last task leaves then.
    grid = HandlerGrid(plus_one, node_ids=[1, 2])
    Run(
        grid,
        seconds=(1.0, 2.5),
        config={"lr": 0.5, "epochs": 2},
        schedule=StepDecay((3,), 0.1),
    ).go()
    configs = [dict(message.content["config"]) for message in grid.pushed]
    assert [config["lr"] for config in configs] == pytest.approx(
        [0.5, 0.5, 0.5, 0.5, 0.5, 0.05]
    )
    assert {config["epochs"] for config in configs} == {2}


@pytest.mark.parametrize(
    ("milestones", "rates"),
    [
        ((2.5,), [0.5, 0.5, 0.5, 0.5, 0.05, 0.05]),
        ((2.0, 3.0), [0.5, 0.5, 0.5, 0.05, 0.05, 0.005]),
        ((3.1,), [0.5] * 6),
    ],
)
def test_the_learning_rate_decays_at_a_virtual_second(milestones, rates):
    # In the run above tasks leave at 0, 0, 1, 2, 2.5 and 3 s.
    grid = HandlerGrid(plus_one, node_ids=[1, 2])
    schedule = StepDecay(milestones, 0.1, unit="seconds")
    Run(grid, seconds=(1.0, 2.5), config={"lr": 0.5}, schedule=schedule).go()
    sent = [message.content["config"]["lr"] for message in grid.pushed]
    assert sent == pytest.approx(rates)


def test_on_the_wall_clock_it_decays_at_a_real_second():
    grid = HandlerGrid(plus_one, node_ids=[1, 2], delay=lambda _: 1.0)
    schedule = StepDecay((1.5,), 0.1, unit="seconds")
    run = Run(grid, config={"lr": 0.5}, schedule=schedule).go()
    sent = [message.content["config"]["lr"] for message in grid.pushed]
    expected = [
        0.05 if order.timing.dispatched_at >= 1.5 else 0.5
        for order in run.recorder.orders
    ]
    assert sent == pytest.approx(expected)
    assert {0.05, 0.5} == {round(lr, 3) for lr in sent}


def test_one_device_of_each_rank_trains_at_any_moment():
    # Ranks of 2 devices each; whichever arrives, its rank is refilled.
    grid = HandlerGrid(plus_one, node_ids=range(6))
    run = Run(grid, seconds=(1, 1.1, 2, 2.1, 3, 3.1), in_flight=3, rounds=8).go()
    arrived = [merged.order.rank for merged in run.recorder.merged]
    sent = [order.rank for order in run.recorder.orders]
    assert sent[:3] == [0, 1, 2]
    assert sent[3:] == arrived[: len(sent) - 3]
    assert len({order.device for order in run.recorder.orders}) == 6


def test_updates_of_slow_ranks_leave_the_learning_rate_alone():
    # Device 1 is so fast that rank 0 is its; device 0 merges nothing before the end.
    grid = HandlerGrid(plus_one, node_ids=[1, 2])
    schedule = StepDecay((1,), 0.1)
    slow_first = Run(grid, seconds=(9.0, 1.0), config={"lr": 1.0}, schedule=schedule)
    state = slow_first.go().state
    assert state.fastest_updates == 5
    assert [m.order.rank for m in slow_first.recorder.merged] == [0] * 5 + [1]


def test_a_project_without_a_learning_rate_gets_none():
    grid = HandlerGrid(plus_one)
    Run(grid, seconds=(1, 2, 3), schedule=StepDecay((0,), 0.1)).go()
    assert all("lr" not in message.content["config"] for message in grid.pushed)


def virtual_run(delays, seed=0):
    """A run whose training depends on the task's seed, over any real delays."""

    def train(message):
        seed = message.content["config"]["asyncdrop-seed"] % 1000
        arrays = message.content["arrays"]["w"].numpy()
        return answer(message, {"w": torch.from_numpy(arrays) * 0.9 + seed / 1000})

    grid = HandlerGrid(
        train,
        node_ids=range(10, 16),
        delay=lambda message: delays[int(message.metadata.message_id[1:])],
    )
    # Its one weight grows from zero by random steps, of which some are 50 times others.
    options = {"in_flight": 3, "rounds": 4, "seed": seed, "outlier_factor": 0}
    run = Run(grid, (1, 1.5, 2, 2.5, 3, 4), **options).go()
    return run.recorder.history(), run.state.arrays["w"].tolist()


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.floats(0, 50), min_size=12, max_size=12))
def test_virtual_time_does_not_depend_on_the_real_delay_of_replies(delays):
    assert virtual_run(delays) == virtual_run([0.0] * 12)


def test_another_seed_gives_another_run():
    assert virtual_run([0.0] * 12, seed=1) != virtual_run([0.0] * 12)


class TestWallClock:
    def test_the_first_reply_is_merged_first_and_its_slot_refilled_at_once(self):
        delays = {1: 7.0, 2: 1.0, 3: 3.0}
        grid = HandlerGrid(plus_one, delay=lambda m: delays[m.metadata.dst_node_id])
        run = Run(grid, in_flight=3, rounds=2).go()
        nodes = [merged.order.node_id for merged in run.recorder.merged]
        assert nodes[:4] == [2, 2, 3, 2]
        fourth = run.recorder.orders[3]
        assert fourth.node_id == 2
        assert fourth.timing.dispatched_at == run.recorder.times[0]
        assert run.recorder.times[0] == pytest.approx(1.0, abs=0.3)

    def test_what_has_arrived_is_merged_while_slots_are_filled_slowly(self):
        def slow(message):
            grid.now += 1.0
            return plus_one(message)

        grid = HandlerGrid(
            slow,
            node_ids=range(1, 9),
            delay=lambda m: 0.0 if m.metadata.dst_node_id == 1 else 30.0,
        )
        run = Run(grid, in_flight=8, rounds=1).go()
        assert run.recorder.merged[0].order.node_id == 1
        assert run.recorder.times[0] < 4
        versions = [order.base_version for order in run.recorder.orders]
        assert versions[:4] == [0, 0, 0, 1]

    def test_callbacks_hear_of_a_long_wait_every_minute(self):
        class Listening(Callback):
            def on_pause(self, state):
                heard.append(round(grid.now))

        heard = []
        grid = HandlerGrid(plus_one, node_ids=[1], delay=lambda m: 150.0)
        Run(grid, in_flight=1, rounds=1, patience=900.0, callbacks=(Listening(),)).go()
        assert heard == [0, 60, 120]

    def test_ranks_follow_the_measured_speed(self):
        delays = {1: 9.0, 2: 5.0, 3: 1.0}
        grid = HandlerGrid(plus_one, delay=lambda m: delays[m.metadata.dst_node_id])
        run = Run(grid, in_flight=3, rounds=6).go()
        orders = run.recorder.orders
        assert [(order.node_id, order.rank) for order in orders[:3]] == [
            *((1, 0), (2, 1), (3, 2))
        ]
        last = {order.node_id: order.rank for order in orders}
        assert last == {3: 0, 2: 1, 1: 2}

    def test_a_timeout_costs_the_task_and_not_the_run(self):
        silent = {1}
        grid = HandlerGrid(
            lambda m: None if m.metadata.dst_node_id in silent else plus_one(m),
            node_ids=[1, 2],
            delay=lambda m: 4.0,
        )
        run = Run(grid, rounds=4, patience=10.0).go()
        assert run.state.updates == 8
        assert run.state.failures == {"no-reply": len(run.recorder.failures)}
        device, kind, reason = run.recorder.failures[0]
        assert (device, kind, reason) == (0, "no-reply", "no reply within 10 s")
        assert {merged.order.node_id for merged in run.recorder.merged} == {2}

    def test_a_reply_after_the_timeout_is_not_merged(self):
        # Node 1 takes 15 s and is given 10: its replies all come too late.
        grid = HandlerGrid(
            plus_one,
            node_ids=[1, 2],
            delay=lambda m: 15.0 if m.metadata.dst_node_id == 1 else 3.0,
        )
        run = Run(grid, rounds=5, patience=10.0).go()
        assert {merged.order.node_id for merged in run.recorder.merged} == {2}
        assert run.state.failures["no-reply"] >= 2

    def test_a_node_that_joins_is_used_and_one_that_leaves_is_not(self):
        def train(message):
            if len(grid.pushed) == 3:
                grid.node_ids = [2, 5]
            return plus_one(message)

        grid = HandlerGrid(train, node_ids=[1, 2], delay=lambda m: 1.0)
        run = Run(grid, rounds=6).go()
        assert run.state.num_devices == 3
        assert {order.node_id for order in run.recorder.orders[6:]} == {2, 5}

    def test_more_slots_than_nodes_are_filled_when_nodes_join(self):
        def train(message):
            grid.node_ids = [1, 2, 3]
            return plus_one(message)

        grid = HandlerGrid(train, node_ids=[1], delay=lambda m: 1.0)
        run = Run(grid, in_flight=3, rounds=9).go()
        assert run.run.updates_per_round == 1
        assert {merged.order.node_id for merged in run.recorder.merged} == {1, 2, 3}

    def test_a_lost_task_shows_at_once_which_nodes_are_left(self):
        def train(message):
            if message.metadata.dst_node_id == 1:
                grid.node_ids = [2]
                return failing(message, "node gone")
            return plus_one(message)

        grid = HandlerGrid(train, node_ids=[1], delay=lambda m: 1.0)
        run = Run(grid, in_flight=4, rounds=3).go()
        assert run.state.failures == {"client-error": 1}
        assert [m.order.node_id for m in run.recorder.merged] == [2, 2, 2]

    def test_a_run_without_nodes_waits_for_one_and_ends_if_none_comes(self, caplog):
        def train(message):
            grid.node_ids = []
            return plus_one(message)

        grid = HandlerGrid(train, node_ids=[1], delay=lambda m: 1.0)
        run = Run(grid, patience=30.0).go()
        assert 30 <= grid.now < 40
        assert (run.state.ended, run.state.updates) == ("timeout", 1)
        assert run.recorder.ended == 1
        ends = [r for r in caplog.records if "no device was there" in r.message]
        waits = [r for r in caplog.records if "waiting 30 s for one" in r.message]
        assert len(ends) == len(waits) == 1

    def test_a_run_that_has_merged_nothing_by_then_is_an_error(self):
        def train(message):
            grid.node_ids = []
            return failing(message, "node gone")

        grid = HandlerGrid(train, node_ids=[1, 2], delay=lambda m: 1.0)
        run = Run(grid, patience=30.0)
        with pytest.raises(RunError, match="no device was there to train for 30 s"):
            run.go()
        assert run.recorder.ended == 1

    @pytest.mark.parametrize(
        ("end", "most_seconds", "failures"),
        [
            # Its error shows at once who is left.
            ("gone", 30, {"client-error": 1}),
            # One that answers nothing is given up three times first, ever later.
            ("silent", 600, {"no-reply": 3}),
            ("failing", 40, {"client-error": 4}),
        ],
    )
    def test_a_cohort_that_waits_for_all_goes_on_without_one(
        self, end, most_seconds, failures
    ):
        """The third device trains twice: two thirds of 20 rounds are left to others."""
        tasks = Counter()

        def train(message):
            node = message.metadata.dst_node_id
            tasks[node] += 1
            if node != 3 or tasks[node] <= 2:
                return plus_one(message)
            if end == "gone":
                grid.node_ids = [1, 2]
            return None if end == "silent" else failing(message, "no power")

        grid = HandlerGrid(train, node_ids=[1, 2, 3], delay=lambda m: 1.0)
        run = Run(
            grid,
            in_flight=3,
            rounds=20,
            patience=3600.0,
            build_aggregator=lambda cohort: Buffered(cohort, waits=True),
        ).go()
        # Two steps of three updates, and 27 of two.
        assert (run.state.updates, run.state.version) == (60, 29)
        assert run.state.failures == failures
        assert grid.now < most_seconds

    def test_one_that_comes_back_is_of_the_cohort_again(self):
        tasks = Counter()

        def train(message):
            node = message.metadata.dst_node_id
            tasks[node] += 1
            if node == 2 and tasks[node] == 2:
                grid.node_ids = [1]
                return failing(message, "node gone")
            if tasks[1] == 9:
                grid.node_ids = [1, 2]
            return plus_one(message)

        grid = HandlerGrid(train, node_ids=[1, 2], delay=lambda m: 1.0)
        run = Run(
            grid,
            rounds=20,
            build_aggregator=lambda cohort: Buffered(cohort, waits=True),
        ).go()
        versions = Counter(merged.order.base_version for merged in run.recorder.merged)
        alone = {version for version, count in versions.items() if count == 1}
        # It is found as the ninth task leaves; the last of 40 updates is a half step.
        assert alone == {*range(1, 8), 23}

    def test_where_some_wait_for_some_others_may_join(self):
        """Two of three are waited for, and a fourth and a fifth come later."""

        def train(message):
            grid.node_ids = [1, 2, 3, 4, 5]
            return plus_one(message)

        grid = HandlerGrid(train, node_ids=[1, 2, 3], delay=lambda m: 1.0)
        run = Run(
            grid,
            in_flight=5,
            rounds=5,
            build_aggregator=lambda _: Buffered(2, waits=True),
        ).go()
        merged = {merged.order.node_id for merged in run.recorder.merged}
        assert (run.run.slots, merged) == (5, {1, 2, 3, 4, 5})

    @pytest.mark.parametrize("waits", [True, False])
    def test_a_buffer_is_for_all_who_may_join(self, waits):
        """One device is there at first, of eight that may be in flight."""
        run = Run(
            HandlerGrid(plus_one, node_ids=[1]),
            in_flight=8,
            build_aggregator=lambda slots: Buffered(slots // 2, waits=waits),
        ).open()
        assert (run.aggregator.size, run.slots) == (4, 8)

    def test_a_cohort_that_waits_for_all_is_of_those_who_are_there(self):
        run = Run(
            HandlerGrid(plus_one, node_ids=[1, 2, 3]),
            in_flight=8,
            build_aggregator=lambda slots: Buffered(slots, waits=True),
        ).open()
        assert (run.aggregator.size, run.slots) == (3, 3)

    def test_fewer_than_a_buffer_waits_for_step_when_all_have_delivered(self):
        grid = HandlerGrid(plus_one, node_ids=[1, 2], delay=lambda m: 1.0)
        run = Run(
            grid,
            in_flight=8,
            build_aggregator=lambda slots: Buffered(slots // 2, waits=True),
        ).go()
        assert (run.state.updates, run.state.version) == (6, 3)

    @pytest.mark.parametrize("made", [partial(Buffered, 2), partial(LatestPerGroup, 2)])
    def test_where_some_wait_for_some_the_last_device_goes_on_alone(self, made):
        """Nobody is left for whom it could wait."""

        def train(message):
            if message.metadata.dst_node_id != 2:
                grid.node_ids = [2]
                return failing(message, "node gone")
            return plus_one(message)

        grid = HandlerGrid(train, node_ids=[1, 2, 3], delay=lambda m: 1.0)
        run = Run(
            grid,
            in_flight=3,
            patience=30.0,
            build_aggregator=lambda _: made(waits=True),
        )
        run.go()
        assert run.state.updates == run.state.version == 9
        assert grid.now < 30

    def test_a_node_that_comes_back_in_time_saves_the_run(self):
        class Returning(HandlerGrid):
            def sleep(self, seconds):
                super().sleep(seconds)
                if self.now > 20:
                    self.node_ids = [1]

        def train(message):
            if grid.now < 20:
                grid.node_ids = []
            return plus_one(message)

        grid = Returning(train, node_ids=[1])
        assert Run(grid, patience=60.0).go().state.updates == 3
        assert grid.now > 20


def test_a_virtual_fleet_goes_on_with_other_nodes_as_if_nothing_had_happened():
    def train(message):
        grid.node_ids = [77, 78]
        return plus_one(message)

    grid = HandlerGrid(train, node_ids=[1, 2])
    replaced = Run(grid, seconds=(1.0, 2.0)).go()
    assert [m.metadata.dst_node_id for m in grid.pushed[3:]] == [78, 77, 77]
    same = Run(HandlerGrid(plus_one, node_ids=[1, 2]), seconds=(1.0, 2.0)).go()
    assert replaced.recorder.history() == same.recorder.history()


class TestDeadlines:
    """Every device needs 4 s, so it is expected to need 10, has 30, and waits 60."""

    def run(self, slow, late="discount", rounds=15):
        """Once, a device that has been on time before needs `slow` seconds."""
        tasks = Counter()

        def delay(message):
            node = message.metadata.dst_node_id
            tasks[node] += 1
            return slow if (node, tasks[node]) == (1, 2) else 4.0

        grid = HandlerGrid(plus_one, node_ids=[1, 2, 3], delay=delay)
        run = Run(grid, rounds=rounds, faults=FaultPolicy(late=late)).go()
        orders = [order for order in run.recorder.orders if order.node_id == 1]
        return run, orders[1]

    def test_the_slot_of_an_overdue_task_is_taken_by_another_device_at_once(self):
        run, slow = self.run(slow=45.0)
        overdue = pytest.approx(slow.timing.dispatched_at + 30, abs=0.3)
        sent = [o for o in run.recorder.orders if o.timing.dispatched_at == overdue]
        assert {order.node_id for order in sent} <= {2, 3}
        assert len(sent) >= 1

    def test_its_device_gets_nothing_until_it_has_replied(self):
        run, slow = self.run(slow=45.0)
        sent = [o.timing.dispatched_at for o in run.recorder.orders if o.node_id == 1]
        assert sent[2] >= slow.timing.dispatched_at + 45

    @pytest.mark.parametrize(("late", "rate"), [("merge", 0.5), ("discount", 0.25)])
    def test_a_late_reply_is_merged_or_merged_by_half(self, late, rate):
        run, slow = self.run(45.0, late)
        merged = [m.order.number for m in run.recorder.merged]
        assert merged.count(slow.number) == 1
        at = merged.index(slow.number)
        before, after = run.recorder.weights[at - 1 : at + 1]
        sent = run.recorder.merged[at].reply.arrays["w"][0].item()
        assert after == pytest.approx(before + rate * (sent - before))
        late_ones = [m.order.number for m in run.recorder.merged if m.late]
        assert late_ones == [slow.number]
        assert run.state.failures == {}

    def test_or_dropped_with_its_bytes_counted(self):
        run, slow = self.run(45.0, "drop")
        assert slow.number not in [m.order.number for m in run.recorder.merged]
        assert run.state.failures == {"late": 1}
        _, kind, reason = run.recorder.failures[0]
        assert kind == "late"
        assert reason.startswith("its reply came 15")
        sizes = [m.reply.num_bytes for m in run.recorder.merged]
        assert run.state.bytes_up == sum(sizes) + sizes[0]

    def test_who_has_not_replied_by_the_second_deadline_is_given_up(self):
        run, slow = self.run(slow=75.0, rounds=30)
        assert run.state.failures == {"no-reply": 1}
        when = next(time for time, _, kind in run.recorder.ends if kind == "no-reply")
        assert when == pytest.approx(slow.timing.dispatched_at + 60, abs=0.3)
        assert run.recorder.failures == [(0, "no-reply", "no reply within 60 s")]
        assert slow.number not in [m.order.number for m in run.recorder.merged]
        # Given up, the device is free again, at a later deadline.
        third = [order for order in run.recorder.orders if order.node_id == 1][2]
        assert third.timing.dispatched_at >= when
        assert third.timing.deadline - third.timing.dispatched_at > 30

    def test_the_run_ends_though_a_late_order_is_still_out(self):
        run, slow = self.run(slow=55.0, rounds=6)
        assert run.state.updates == 12
        assert list(run.state.late.values()) == [slow]
        assert run.state.dispatched == 12 + 1 + len(run.state.in_flight)


def test_a_device_that_joins_is_found_while_another_hangs():
    def train(message):
        grid.node_ids = [1, 2]
        return None if message.metadata.dst_node_id == 1 else plus_one(message)

    grid = HandlerGrid(train, node_ids=[1], delay=lambda m: 1.0)
    run = Run(grid, in_flight=2, rounds=3).go()
    joined = run.recorder.orders[1]
    assert (joined.node_id, joined.timing.dispatched_at) == (
        2,
        pytest.approx(5.0, abs=0.3),
    )
    assert run.state.updates == 3


class TwiceGrid(HandlerGrid):
    """Delivers every reply a second time, with the next one."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.before = []

    def pull_messages(self, message_ids):
        here = super().pull_messages(message_ids)
        again = self.before if here else []
        self.before = here or self.before
        return [*here, *here, *again]


@pytest.mark.parametrize("seconds", [None, (1.0, 2.5)])
def test_a_reply_that_comes_twice_is_merged_once(seconds):
    once = Run(HandlerGrid(plus_one, [1, 2]), seconds).go()
    twice = Run(TwiceGrid(plus_one, [1, 2]), seconds).go()
    assert twice.recorder.history() == once.recorder.history()
    assert once.state.duplicates == 0
    assert twice.state.duplicates >= 6


class TestFailures:
    def test_a_client_that_raises_costs_its_task(self):
        def train(message):
            bad = message.metadata.dst_node_id == 1
            return failing(message, "CUDA\nout") if bad else plus_one(message)

        grid = HandlerGrid(train, node_ids=[1, 2])
        faults = FaultPolicy(quarantine_after=0)
        run = Run(grid, seconds=(1.0, 1.0), faults=faults).go()
        # It fails at 1 to 6 s; device 1 works at 1 to 5 s and, as the last task is not
        # given to the device that has just failed, at 7 s.
        assert run.recorder.times == [1, 2, 3, 4, 5, 7]
        assert run.state.failures == {"client-error": 6}
        assert run.recorder.failures[0] == (
            0,
            "client-error",
            "the client failed with code 3: CUDA out",
        )

    @pytest.mark.parametrize(
        ("state", "metrics", "kind"),
        [
            ({"w": torch.ones(3)}, {}, "shape"),
            ({"v": torch.ones(2)}, {}, "names"),
            ({"w": torch.ones(2, dtype=torch.float64)}, {}, "dtype"),
            ({"w": torch.ones(2, dtype=torch.int64)}, {}, "dtype"),
            ({"w": torch.tensor([0.0, torch.nan])}, {}, "non-finite"),
            ({"w": torch.ones(2)}, {"num-examples": 0}, "num-examples"),
            ({"w": torch.ones(2)}, {"num-examples": float("inf")}, "num-examples"),
            ({"w": torch.ones(2)}, {"num-examples": float("nan")}, "num-examples"),
        ],
    )
    def test_a_reply_that_does_not_fit_costs_its_task(self, state, metrics, kind):
        def train(message):
            if message.metadata.dst_node_id == 1:
                return answer(message, state, **metrics)
            return plus_one(message)

        run = Run(HandlerGrid(train, node_ids=[1, 2]), seconds=(4.0, 1.0)).go()
        # It fails at 4 and at 8 s, when all others are done.
        assert run.state.failures == {kind: 2}
        assert run.recorder.times == [1, 2, 3, 4, 5, 9]
        assert run.recorder.weights == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]

    @pytest.mark.parametrize("data", [b"PK\x03\x04 no zip", b"\x93NUMPY\x01", b""])
    def test_bytes_that_are_no_array_cost_their_task(self, data):
        def train(message):
            reply = plus_one(message)
            if message.metadata.dst_node_id == 1:
                array = Array("float32", (2,), "numpy.ndarray", data)
                reply.content["arrays"]["w"] = array
            return reply

        run = Run(HandlerGrid(train, node_ids=[1, 2]), seconds=(4.0, 1.0)).go()
        assert run.state.failures == {"unreadable": 2}

    def test_an_archive_of_arrays_costs_its_task(self, tmp_path):
        np.savez(tmp_path / "a.npz", w=np.zeros(2))
        data = (tmp_path / "a.npz").read_bytes()
        self.test_bytes_that_are_no_array_cost_their_task(data)

    def test_a_device_that_keeps_failing_is_left_alone_ever_longer(self):
        def train(message):
            bad = message.metadata.dst_node_id == 1 and len(grid.pushed) < 17
            return failing(message) if bad else plus_one(message)

        grid = HandlerGrid(train, node_ids=[1, 2])
        run = Run(grid, seconds=(1.0, 1.0), rounds=12).go()
        sent = [o.timing.dispatched_at for o in run.recorder.orders if o.device == 0]
        # It fails after a second each: three times, then after pauses of 1, 2 and 4 s.
        # Then it is healed.
        assert sent[:6] == [0, 1, 2, 4, 7, 12]
        assert sent[6:] == list(range(13, 13 + len(sent) - 6))
        assert run.state.failures == {"client-error": 5}
        fleet = run.run.fleet
        assert (
            fleet.readiness.failures_in_a_row,
            fleet.readiness.quarantined_until,
        ) == ({}, {})

    def test_with_all_devices_in_quarantine_the_clock_goes_to_the_first_release(self):
        outcomes = iter([failing] * 2 + [plus_one] * 9)
        grid = HandlerGrid(lambda m: next(outcomes)(m), node_ids=[1])
        faults = FaultPolicy(quarantine_after=1)
        run = Run(grid, seconds=(4.0,), in_flight=1, rounds=2, faults=faults).go()
        # Failures at 4 and, released at 8, at 12; released at 20.
        assert run.recorder.times == [24.0, 28.0]

    def test_real_devices_are_released_too(self):
        outcomes = iter([failing] * 2 + [plus_one] * 9)
        grid = HandlerGrid(
            lambda m: next(outcomes)(m), node_ids=[1], delay=lambda m: 1.0
        )
        faults = FaultPolicy(quarantine_after=1)
        run = Run(grid, in_flight=1, rounds=1, faults=faults).go()
        sent = [order.timing.dispatched_at for order in run.recorder.orders]
        assert sent == pytest.approx([0, 11, 32], abs=0.6)

    def test_nothing_but_failures_after_some_updates_end_the_run_in_order(self, caplog):
        outcomes = iter([plus_one] * 3)
        grid = HandlerGrid(lambda m: next(outcomes, failing)(m), node_ids=[1, 2])
        run = Run(grid, seconds=(1.0, 1.0), rounds=9).go()
        assert (run.state.ended, run.state.updates) == ("failures", 3)
        # Ten of each device: its quarantine has grown to 64 tasks by then.
        assert run.state.failures == {"client-error": 20}
        assert "the last 20 tasks all failed" in caplog.text
        assert run.recorder.ended == 1

    @pytest.mark.parametrize("seconds", [None, (1.0, 2.0)])
    def test_nothing_but_failures_end_the_run_with_the_last_reason(self, seconds):
        grid = HandlerGrid(
            lambda m: failing(m, f"reason of {len(grid.pushed)}"), [1, 2]
        )
        run = Run(grid, seconds)
        with pytest.raises(RunError, match=r"last 6 tasks all failed") as caught:
            run.go()
        assert run.recorder.failures[-1][2] in str(caught.value)
        assert len(run.recorder.failures) == 6
        assert "\n" not in str(caught.value)
        assert "During handling" not in "".join(format_exception(caught.value))
        assert run.recorder.ended == 1

    def test_a_success_in_between_starts_the_count_anew(self):
        outcomes = iter([failing] * 5 + [plus_one] + [failing] * 5 + [plus_one] * 9)
        grid = HandlerGrid(lambda m: next(outcomes)(m), node_ids=[1, 2])
        run = Run(grid, seconds=(1.0, 1.0)).go()
        assert run.state.failures == {"client-error": 10}
        assert run.state.updates == 6

    def test_a_message_that_the_grid_does_not_take_is_counted(self):
        def refuse_first(message):
            if not grid.pushed and not run.recorder.failures:
                raise RefusedError
            return plus_one(message)

        grid = HandlerGrid(refuse_first, node_ids=[1, 2])
        run = Run(grid, seconds=(1.0, 2.0))
        run.go()
        assert run.state.failures == {"not-sent": 1}
        assert run.state.dispatched == 7
        assert run.state.bytes_down == run.state.bytes_up

    def test_a_grid_that_takes_nothing_ends_the_run(self):
        grid = HandlerGrid(plus_one, node_ids=[1])
        grid.refuse = []
        with pytest.raises(RunError, match="the grid did not take the message"):
            Run(grid, seconds=(1.0,), in_flight=1).go()


OUTCOMES = {
    "merged": plus_one,
    "client-error": failing,
    "shape": lambda message: answer(message, {"w": torch.zeros(9)}),
    "no-reply": lambda message: None,
}


@settings(max_examples=examples(60), deadline=None)
@example(["merged"] + ["client-error"] * 10, [0.0], False, 1, 1)
@given(
    script=st.lists(st.sampled_from([*OUTCOMES, "not-sent"]), max_size=30),
    delays=st.lists(st.floats(0, 20), min_size=1, max_size=8),
    virtual=st.booleans(),
    in_flight=st.integers(1, 4),
    num_nodes=st.integers(1, 5),
)
def test_whatever_happens_the_books_are_right(
    script, delays, virtual, in_flight, num_nodes
):
    seen = []

    def handle(message):
        kind = script[len(seen)] if len(seen) < len(script) else "merged"
        seen.append(kind)
        if kind == "not-sent":
            raise RefusedError
        return OUTCOMES[kind](message)

    grid = HandlerGrid(
        handle,
        node_ids=range(1, num_nodes + 1),
        delay=lambda m: delays[int(m.metadata.message_id[1:]) % len(delays)],
    )
    seconds = tuple(1.0 + node for node in range(num_nodes)) if virtual else None
    run = Run(grid, seconds, in_flight=in_flight, rounds=3, patience=30.0)
    try:
        run.go()  # the recorder checks slots and devices at every dispatch
    except RunError:
        assert run.state.version == 0
        assert len(run.recorder.failures) == 3 * min(in_flight, num_nodes)
    else:
        state = run.state
        assert state.updates == state.version == len(run.recorder.merged)
        if state.ended:
            # Nothing but failures came in, as many as the last rule of a run allows.
            most = max(3 * run.run.slots, 10 * state.num_devices)
            assert (state.ended, len(state.lost_in_a_row)) == ("failures", most)
            return
        assert state.updates == 3 * run.run.updates_per_round
        assert not state.in_flight
        assert (
            state.dispatched == len(seen) == state.updates + len(run.recorder.failures)
        )
        lost = {kind: seen.count(kind) for kind in set(seen) - {"merged"}}
        assert state.failures == lost
        times = run.recorder.times
        assert times == sorted(times)


class Stop(Callback):
    def on_update(self, state, merged):
        raise KeyboardInterrupt


def test_a_run_that_is_interrupted_tells_its_callbacks():
    run = Run(HandlerGrid(plus_one), seconds=(1, 2, 3), callbacks=(Stop(),))
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert run.recorder.ended == 1


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_callback_that_raises_at_the_end_keeps_no_other_from_it(interrupted):
    """Files stay locked otherwise, and a history without its end."""
    told = []

    class Raises(Callback):
        def on_update(self, state, merged):
            if interrupted:
                raise Interrupted(15)

        def on_end(self, state):
            raise OSError("the disk is full")

        on_interrupt = on_end

    class Told(Callback):
        def on_end(self, state):
            told.append("end")

        def on_interrupt(self, state):
            told.append("interrupt")

    callbacks = Raises(), Told(), Told()
    with pytest.raises(OSError, match="the disk is full"):
        Run(HandlerGrid(plus_one), seconds=(1, 2, 3), callbacks=callbacks).go()
    assert told == ["interrupt" if interrupted else "end"] * 2


def test_a_task_that_leaves_goes_with_the_weights_of_that_moment():
    """Merging on must not change what is on its way."""
    grid = HandlerGrid(plus_one, node_ids=[1, 2])
    Run(grid, seconds=(1.0, 2.5)).go()
    sent = [message.content["arrays"]["w"].numpy()[0] for message in grid.pushed]
    assert sent == [0.0, 0.0, 0.5, 1.0, 1.0, 1.5]
