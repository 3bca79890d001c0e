import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.fleets import build_fleet
from flwr_asyncdrop.app.lr_schedule import expected_schedule, fastest_share
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.selection import Uniform
from flwr_asyncdrop.fleet.work import WorkPolicy
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy
from tests.grids import HandlerGrid
from tests.runs import Recorder, mlp, plus_one, record

COMPUTE = TaskCost(1.0, 0, 0)


def share(seconds, num_ranks, **kwargs):
    profiles = [DeviceProfile(float(s)) for s in seconds]
    return fastest_share(profiles, [COMPUTE] * num_ranks, **kwargs)


def test_with_one_of_each_rank_the_share_is_that_of_the_speed():
    # 1 s and 4 s: of five updates in 4 s the fastest does four.
    assert share([1, 4], 2) == pytest.approx(4 / 5)
    # Ranks of two: 1.5 s and 6 s on average.
    assert share([1, 2, 4, 8], 2) == pytest.approx((1 / 1.5) / (1 / 1.5 + 1 / 6))


def test_if_any_device_may_be_next_each_does_equally_many():
    assert share([1, 2, 4, 8], 2, uniform=True) == 0.5
    assert share([1, 2, 4, 8, 9], 2, uniform=True) == pytest.approx(3 / 5)


def test_who_waits_for_the_others_does_as_many_as_they():
    assert share([1, 4], 2, waits_for=2) == 0.5
    assert share([1, 2, 3, 4, 5], 5, waits_for=5) == pytest.approx(0.2)
    # One of two before anybody goes on: the speed says 12/25.
    assert share([1, 2, 3, 4], 4, waits_for=2) == pytest.approx(12 / 25)
    assert share([1, 20, 30, 40], 4, waits_for=2) == 0.5


def test_who_is_much_faster_than_the_median_does_not_wait():
    seconds, alone = [1, 20, 30, 40], 1 / (1 + 1 / 20 + 1 / 30 + 1 / 40)
    assert share(seconds, 4, waits_for=2, wait_limit=25.0) == 0.5
    assert share(seconds, 4, waits_for=2, wait_limit=24.0) == pytest.approx(alone)


def test_transfers_and_jitter_take_their_time_and_lost_tasks_are_no_updates():
    slow, costs = DeviceProfile(4.0), [TaskCost(1.0, 30, 30)] * 2
    thin = DeviceProfile(1.0, bytes_per_second_down=10.0)
    assert fastest_share([thin, slow], costs) == pytest.approx(0.5)
    shaky = DeviceProfile(1.0, jitter=math.sqrt(2 * math.log(4)))  # 4 s on average
    assert fastest_share([shaky, slow], costs) == pytest.approx(0.5)
    lossy = DeviceProfile(1.0, dropout=0.75)
    assert fastest_share([lossy, slow], costs) == pytest.approx(0.5)
    assert fastest_share([lossy, slow], costs, uniform=True) == pytest.approx(0.2)
    # Three of four tasks are lost, and show after 5 s: four tasks in 16 s.
    late = fastest_share([lossy, DeviceProfile(16.0)], costs, deadline=5.0)
    assert late == pytest.approx(0.5)


def test_a_smaller_submodel_for_the_slow_evens_the_pace():
    costs = [TaskCost(1.0, 0, 0), TaskCost(0.25, 0, 0)]
    assert fastest_share([DeviceProfile(1.0), DeviceProfile(4.0)], costs) == 0.5


def test_a_policy_is_asked_about_the_devices_by_their_index():
    class Halved(WorkPolicy):
        def share(self, context):
            return 0.5 if context.device == 0 else 1.0

    # The first of the fleet is the slower one: 2 s beside 1 s.
    assert share([4, 1], 2, work=Halved()) == pytest.approx(2 / 3)


@given(st.integers(1, 40), st.integers(1, 12), st.booleans(), st.floats(1, 50))
def test_a_share_is_no_less_than_that_of_equals(size, ranks, uniform, ratio):
    fleet = speed_levels(size, num_levels=ranks, slowest_over_fastest=ratio)
    found = fastest_share(fleet, [COMPUTE] * ranks, uniform=uniform)
    least = 1 / size if uniform else 1 / min(size, ranks)
    assert least - 1e-12 <= found <= 1


def test_the_milestones_of_the_default_fleet_by_hand():
    # Of 480 updates the fastest of 8 levels does 480 / (7/7 + 7/11 + 7/15 + ... + 7/35)
    # = 138.7; the rate decays after a half and three quarters of them.
    costs = [COMPUTE] * 8
    strategy = build_strategy(RunConfig(algo="async-fedavg"))
    assert strategy.schedule(costs, 104) == StepDecay((69, 104), 0.1)
    # With all in step it is an eighth: 60.
    strategy = build_strategy(RunConfig(algo="fedavg", lr_gamma=0.5))
    assert strategy.schedule(costs, 104) == StepDecay((30, 45), 0.5)


def test_the_first_tasks_have_the_whole_rate_in_the_shortest_run():
    # A half of its one update is nothing done yet.
    schedule = build_strategy(RunConfig(algo="fedavg", num_rounds=1)).schedule
    assert schedule([COMPUTE] * 8, 104) == StepDecay((1, 1), 0.1)


def test_real_devices_that_may_still_join_leave_the_buffer_as_it_is():
    config = RunConfig.parse(
        {"algo": "fedbuff-wait", "combine": "median", "clock": "wall"}
    )
    # Four of the eight that may train, all of which wait for each other.
    half, _ = build_strategy(config).schedule([COMPUTE] * 4, 4).milestones
    assert half == config.num_rounds / 2


@pytest.mark.parametrize("algo", ["async-fedavg", "hetero-asyncdrop", "fedavg"])
def test_milestones_in_seconds_are_the_same_for_every_algorithm(algo):
    strategy = build_strategy(RunConfig(algo=algo, lr_milestones="1200s,1800.5s"))
    expected = StepDecay((1200.0, 1800.5), 0.1, unit="seconds")
    assert strategy.schedule([COMPUTE] * 8, 104) == expected


def test_a_trace_is_in_the_order_of_tasks_not_of_computing():
    # With its link the first takes 101 s and is the slower one, so the other does most.
    costs = [TaskCost(1.0, 100, 0)] * 2
    slow_link, slow = DeviceProfile(1.0, bytes_per_second_down=1.0), DeviceProfile(4.0)
    wanted = (1 / 4) / (1 / 4 + 1 / 101)
    assert fastest_share([slow_link, slow], costs) == pytest.approx(wanted)


TRACE = "seconds_per_step,jitter,dropout\n9,0.4,0\n1,0,0.2\n3,0.2,0.1\n2,0.5,0\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"algo": "async-fedavg"},
        {"algo": "asyncdrop", "drop_rate": 0.4, "duration": "paper"},
        {"algo": "async-fjord", "drop_rate": 0.4, "speed_ratio": 9.0},
        {"algo": "async-fedavg", "dropout": 0.3, "jitter": 0.5},
        {"algo": "async-fedavg", "availability": 0.5},
        {"algo": "async-fedavg", "selection": "uniform"},
        {"algo": "async-fedavg", "trace": TRACE},
        {"algo": "async-fedavg", "trace": TRACE, "deadline": 8.0},
        {"algo": "fedbuff"},
        {"algo": "fedbuff-wait"},
        {"algo": "fedavg"},
        {"algo": "fedavg", "selection": "uniform"},
        {"algo": "tests.strategy.test_work:Timely", "least": 0.01},
    ],
    ids=lambda changes: " ".join(str(value) for value in changes.values())[:40],
)
@pytest.mark.usefixtures("no_settling")
def test_the_fastest_rank_really_does_that_many(changes, tmp_path):
    done, half, whole, updates = fastest_of_run(changes, 40, tmp_path)
    assert updates == 240
    assert done == pytest.approx(whole, rel=0.12)
    assert half == pytest.approx(whole / 2, abs=1)


@pytest.mark.parametrize(
    ("changes", "nodes"),
    [
        *(({"algo": "async-fedavg", "levels": 3}, nodes) for nodes in (1, 3, 4, 5, 7)),
        *(({"algo": "async-fedavg", "trace": TRACE}, nodes) for nodes in (1, 3, 5)),
        *(
            ({"algo": "async-fedavg", "selection": "uniform"}, nodes)
            for nodes in (2, 4)
        ),
        *(({"algo": "fedavg"}, nodes) for nodes in (3, 4, 5)),
    ],
)
@pytest.mark.usefixtures("no_settling")
def test_so_it_does_on_few_devices(changes, nodes, tmp_path):
    done, half, whole, updates = fastest_of_run(changes, nodes, tmp_path)
    assert updates == 60 * min(nodes, 4)
    assert done == pytest.approx(whole, rel=0.12)
    assert half == pytest.approx(whole / 2, abs=1)


def as_long(message):
    """Train, and say that as much was trained as was asked for."""
    reply, work = plus_one(message), wire.read_task(message).work
    if work is not None:
        reply.content["metrics"]["work-share"] = work
    return reply


def fastest_of_run(changes, nodes, folder):
    """Return the updates of the fastest rank, its milestones, and all updates."""
    if "trace" in changes:
        (folder / "trace.csv").write_text(TRACE)
        changes = {**changes, "trace": str(folder / "trace.csv")}
    levels = {} if "trace" in changes else {"levels": 4}
    config = RunConfig.parse(
        {"in-flight": 4, "num-rounds": 60, "lr-milestones": "0.5,0.999", **levels}
        | {name.replace("_", "-"): value for name, value in changes.items()}
    )
    schedules = []

    def noted(costs, num_devices):
        schedules.append(expected_schedule(config, costs, num_devices))
        return schedules[0]

    recorder = Recorder()
    uniform = config.selection == "uniform"
    strategy = AsyncStrategy(
        mlp(),
        torch.zeros(1, 4),
        algorithm=config.algorithm,
        in_flight=config.in_flight,
        min_available_nodes=1,
        fraction_evaluate=0.0,
        fleet=build_fleet(config),
        duration=config.duration,
        selection=Uniform() if uniform else None,
        schedule=noted,
        callbacks=[recorder],
        faults=FaultPolicy(config.deadline),
    )
    initial = mlp().state_dict()
    grid = HandlerGrid(as_long, node_ids=range(nodes))
    strategy.start(grid, record(initial), config.num_rounds)
    ((half, whole),) = (schedule.milestones for schedule in schedules)
    done = sum(merged.order.rank == 0 for merged in recorder.merged)
    return done, half, whole, len(recorder.merged)
