"""Local steps that differ from device to device."""

import math
from dataclasses import dataclass

import pytest
import torch
from flwr.app import ConfigRecord

from flwr_asyncdrop import AsyncFedAvg, AsyncStrategy, wire
from flwr_asyncdrop.aggregation import Aggregator, Mixing
from flwr_asyncdrop.algorithms import FedBuff
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.fleet import DeviceProfile, WorkBySpeed, WorkContext, WorkPolicy
from flwr_asyncdrop.observers.history_lines import update_line
from flwr_asyncdrop.parameters import in_interval, parameter
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.state_dict import from_plain, to_plain
from tests.checkpoint.small_runs import client, run
from tests.checkpoint.test_resume import checkpoints, stopping_at
from tests.grids import HandlerGrid
from tests.runs import answer, plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")

ZEROS = {"w": torch.zeros(2)}
USUAL = 10  # local steps


def stepping(message):
    """Add a tenth for every local step, and say how many there were."""
    task = wire.read_task(message)
    state, steps = wire.from_record(message.content["arrays"]), task.steps(USUAL)
    said = {} if task.work is None else {"work-share": steps / USUAL}
    return answer(message, {n: t + steps / USUAL for n, t in state.items()}, **said)


class Noting(Callback):
    def __init__(self):
        self.lines, self.failures = [], []

    def on_fleet(self, fleet):
        self.fleet = fleet

    def on_update(self, state, merged):
        self.lines.append(update_line(state, merged))

    def on_failure(self, state, order, kind, reason):
        self.failures.append((order.device, kind, reason))


class Kept(Aggregator):
    """Keeps what it is told of the work."""

    def __init__(self):
        self.work = []

    def merge(self, state, update):
        self.work.append((update.device, update.work, update.arrays["w"][0].item()))
        return True


class Fixed(WorkPolicy):
    def __init__(self, *shares):
        self.shares = shares
        self.seen = []

    def share(self, context):
        self.seen.append(context)
        return self.shares[context.device]


def fleet(count):
    return [DeviceProfile(4.0**place, latency=0.5) for place in range(count)]


def start(handle=stepping, nodes=2, rounds=4, **arguments):
    noting = Noting()
    given = {"aggregator": Mixing(0.5), "fleet": fleet, "in_flight": nodes}
    strategy = AsyncStrategy(
        fraction_evaluate=0.0, callbacks=[noting], **{**given, **arguments}
    )
    grid = HandlerGrid(handle, node_ids=range(1, nodes + 1))
    strategy.start(grid, record(ZEROS), num_rounds=rounds)
    return noting, grid


def test_a_share_is_in_the_config_on_the_clock_and_in_the_history():
    noting, _ = start(work=WorkBySpeed(), rounds=3)
    # 1 s of training, and half a second each way: a fourth of 4 s is as long.
    assert [line["time"] for line in noting.lines] == [2, 2, 4, 4, 6, 6]
    by_device = {line["device"]: line for line in noting.lines}
    assert [by_device[device]["work"] for device in (0, 1)] == [1, 0.25]
    assert [by_device[device]["compute"] for device in (0, 1)] == [1, 0.25]


def test_the_aggregator_is_told_what_was_trained():
    kept = []

    class Telling(Kept):
        def merge(self, state, update):
            kept.append((update.device, update.work, update.arrays["w"][0].item()))
            return True

    start(aggregator=Telling(), work=Fixed(1.0, 0.25), rounds=1)
    # Of 10 steps a fourth are 2.5, which Python rounds to 2.
    assert sorted(kept) == [(0, 1.0, 1.0), (1, 0.2, pytest.approx(0.2))]


def test_more_than_the_usual_steps():
    noting, _ = start(work=Fixed(2.0, 1.0), rounds=2)
    first = next(line for line in noting.lines if line["device"] == 0)
    assert first["time"] == 3  # 2 s of training, and the way


def test_a_client_may_round_up_to_whole_steps():
    noting, _ = start(work=Fixed(1.06, 2.28), rounds=2)  # 10.6 steps, and 22.8
    assert noting.failures == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({}, "None"),
        ({"work-share": [0.25]}, "[0.25]"),
        *(({"work-share": x}, "") for x in (0.0, 1.5, 1e-9, math.nan)),
    ],
)
def test_a_reply_that_does_not_say_so_is_refused(said, shown):
    def ignoring(message):
        state = wire.from_record(message.content["arrays"])
        work = wire.read_task(message).work
        return answer(message, state, **({"work-share": 1.0} if work == 1 else said))

    noting, _ = start(ignoring, work=WorkBySpeed(), rounds=2)
    assert {line["device"] for line in noting.lines} == {0}
    (device, kind, reason), *_ = noting.failures
    assert (device, kind) == (1, "work")
    assert reason.startswith(
        "the task has 0.25 of the usual local steps, and the reply's metric "
        f"'work-share' is {shown}"
    )


def test_without_a_policy_tasks_do_not_say():
    noting, grid = start()
    assert not any("work" in line for line in noting.lines)
    assert not any("work-share" in m.content["config"] for m in grid.pushed)
    full, _ = start(work=Fixed(1.0, 1.0))
    assert [{**line, "work": 1.0} for line in noting.lines] == full.lines


def test_what_a_policy_goes_by():
    seen = []

    class Seeing(WorkPolicy):
        def share(self, context):
            seen.append(context)
            return 1.0

    start(work=Seeing(), rounds=1)
    assert seen[:2] == [
        WorkContext(0, 0, 2, 1.0, 2.0, 0.0, 1),
        WorkContext(1, 1, 2, 0.25, 5.0, 0.0, 1),
    ]


def seeing(seen):
    """Return a policy that notes what a task should take, and gives all steps."""

    class Seeing(WorkPolicy):
        def share(self, context):
            seen.append(context.seconds)
            return 1.0

    return Seeing()


@pytest.mark.parametrize("codec", [None, "q4"])
def test_what_a_task_should_take_is_of_what_travels(codec):
    seen, device = [], DeviceProfile(1.0, 1000.0, 1000.0)
    strategy = AsyncStrategy(
        aggregator=Mixing(1.0),
        fleet=lambda count: [device] * count,
        work=seeing(seen),
        codec=codec,
        trainable="w",
    )
    drawn = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    arrays = record({"w": drawn, "still": torch.zeros(999)})
    grid = HandlerGrid(stepping, node_ids=(1, 2))
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    orders = strategy._run.state.in_flight.values()
    took = [device.duration(order.cost) for order in orders]
    assert seen == pytest.approx(took, rel=0.03)  # but for the heads of arrays


def test_of_real_devices_by_what_their_tasks_took():
    seen = []
    start(fleet=None, nodes=1, min_available_nodes=1, rounds=3, work=seeing(seen))
    assert seen[0] is None
    assert 0 < max(seen[1:]) < 5


def test_real_devices_are_as_fast_with_fewer_steps():
    """What is learnt of a device's speed is what all steps would take."""
    noting, grid = start(fleet=None, work=Fixed(1.0, 0.5), rounds=3)
    assert {m.content["config"].get("work-share") for m in grid.pushed} == {1.0, 0.5}
    assert {line["device"] for line in noting.lines} == {0, 1}


def test_what_real_devices_report_is_of_the_steps_that_they_trained():
    """Of two usual steps 0.3 are one, which is a half."""

    def reporting(message):
        state = wire.from_record(message.content["arrays"])
        reply = answer(message, state, **{"work-share": 0.5})
        wire.add_report(reply, wire.DeviceReport(train_seconds=5.0))
        return reply

    noting, _ = start(reporting, fleet=None, work=Fixed(0.3, 0.3), rounds=1)
    assert {
        each.train_seconds for each in noting.fleet.devices.capacities.values()
    } == {10.0}


def test_steps_that_simulated_time_does_not_count_are_warned_of(caplog):
    noting, _ = start(work=Fixed(0.05, 0.02), rounds=2)  # 0.5 of 10 steps, and 0.2
    assert noting.failures == []
    (said,) = [line for line in caplog.messages if "of the usual local steps" in line]
    assert said == (
        "device 0 has trained 0.1 of the usual local steps, and simulated time and "
        "energy count the 0.05 that the work policy gave it: give no less than one step"
    )


class Halving(WorkPolicy):
    """Halves a device's share with each of its updates, down to a tenth."""

    def __init__(self):
        self.count = {}

    def share(self, context):
        return max(0.5 ** self.count.get(context.device, 0), 0.1)

    def learn(self, update):
        self.count[update.device] = self.count.get(update.device, 0) + 1

    def state_dict(self):
        return {"count": to_plain(self.count)}

    def load_state_dict(self, state):
        self.count = from_plain(dict[int, int], state["count"])


class Forgetting(Halving):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def saying(message):
    work = wire.read_config(message).get("work-share")
    reply = client(message)
    if work is not None:
        reply.content["metrics"]["work-share"] = work
    return reply


def test_a_run_resumes_with_what_its_policy_has_learnt(tmp_path):
    settings = {"work": Halving(), "handler": saying}
    whole = run(tmp_path / "whole", "asyncdrop", **settings)
    assert run(tmp_path / "other", "asyncdrop") != whole
    for checkpoint in checkpoints(tmp_path / "whole")[:0:-1]:
        again = run(tmp_path / "whole", "asyncdrop", resume=checkpoint, **settings)
        assert again == whole
    with pytest.raises(CheckpointError, match="work"):
        run(tmp_path / "whole", "asyncdrop", resume=tmp_path / "whole")


def test_one_that_does_not_save_what_changes_has_no_checkpoints(tmp_path, caplog):
    run(tmp_path, "asyncdrop", work=Forgetting(), handler=saying)
    assert "no checkpoint has Forgetting.count" in caplog.text


@pytest.mark.parametrize("share", [0, -1.0, math.nan, 101, "half", None])
def test_what_is_no_share(share):
    with pytest.raises(ConfigError, match=r"the share of Fixed=.* must be in \(0, 100"):
        start(work=Fixed(share, share))


@dataclass(frozen=True)
class Timely(FedBuff):
    least: float = parameter(0.5, "smallest share", in_interval("(0, 1]"))

    def work(self):
        return WorkBySpeed(self.least)


class TestAlgorithms:
    def test_one_that_has_a_policy(self):
        noting, _ = start(algorithm=Timely(buffer_size=1), aggregator=None)
        assert {line["work"] for line in noting.lines} == {1, 0.5}

    def test_the_strategys_own_takes_its_place(self):
        own = Fixed(1.0, 0.1)
        noting, _ = start(algorithm=FedBuff(buffer_size=1), aggregator=None, work=own)
        assert {line["work"] for line in noting.lines} == {1, 0.1}
        assert own.seen == []  # every run has a copy
        with pytest.raises(ConfigError, match=r"\(work=\.\.\.\) has no use for least"):
            AsyncStrategy(algorithm=Timely(least=0.2), work=own)

    def test_what_is_no_policy(self):
        class Wrong(FedBuff):
            def work(self):
                return 0.5

        with pytest.raises(ConfigError, match=r"work\(\) of Wrong returned 0.5"):
            AsyncStrategy(algorithm=Wrong())
        with pytest.raises(ConfigError, match=r"work=WorkBySpeed is a class"):
            AsyncFedAvg(work=WorkBySpeed)


def test_rounds_that_are_driven_from_outside():
    strategy = AsyncStrategy(aggregator=Mixing(1.0), fleet=fleet, work=WorkBySpeed())
    grid = HandlerGrid(stepping, node_ids=(1, 2))
    messages = list(strategy.configure_train(1, record(ZEROS), ConfigRecord(), grid))
    assert [m.content["config"].get("work-share") for m in messages] == [1.0, 0.25]
    arrays, _ = strategy.aggregate_train(1, [stepping(m) for m in messages])
    assert wire.from_record(arrays)["w"].tolist() == pytest.approx([0.2, 0.2])
    messages = list(strategy.configure_train(2, arrays, ConfigRecord(), grid))
    assert strategy.aggregate_train(2, [plus_one(messages[1])]) == (None, None)


def test_by_speed():
    def share(capability, least, most=1.0):
        return WorkBySpeed(least, most).share(
            WorkContext(0, 0, 1, capability, None, 0.0, 1)
        )

    assert [share(c, 0.2) for c in (1.0, 0.5, 0.1)] == [1.0, 0.5, 0.2]
    assert [share(c, 0.2, 5) for c in (1.0, 0.2, 0.01)] == [5.0, 1.0, 0.2]
    with pytest.raises(ConfigError, match=r"most=0\.05 is less than least=0\.1"):
        WorkBySpeed(most=0.05)
    with pytest.raises(ConfigError, match="least=0"):
        WorkBySpeed(0)


def test_a_stopped_run_goes_on(tmp_path):
    settings = {"work": Halving()}
    whole = run(tmp_path / "whole", "fedbuff", handler=saying, **settings)

    def stopping():
        stop = stopping_at(6)

        def handle(message):
            stop(message)
            return saying(message)

        return handle

    folder, resume = tmp_path / "stopped", None
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(folder, "fedbuff", resume=resume, handler=stopping(), **settings)
        resume = folder
    assert run(folder, "fedbuff", resume=folder, handler=saying, **settings) == whole
