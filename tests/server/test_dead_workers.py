"""A dead worker of Flower's simulation is no fault of the devices."""

import logging
import socket
from itertools import count

import pytest
from flwr.app import Error, Message

from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import GridLostError
from flwr_asyncdrop.flower_internals.ray_workers import death_of_worker, has_ray_workers
from flwr_asyncdrop.server.dead_workers import DeadWorkers
from tests.checkpoint.small_runs import client, run
from tests.grids import HandlerGrid
from tests.runs import Run, failing, plus_one

pytestmark = pytest.mark.usefixtures("no_settling")

# As Flower 1.41 and Ray 2.55 said them when a raylet was killed.
DIED = (
    "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before "
    "finishing this task.\n\tclass_name: ClientAppActor'>"
)
UNAVAILABLE = (
    "<class 'ray.exceptions.ActorUnavailableError'>:<'The actor ba3829e0 is "
    "unavailable: RpcError: RPC error: Socket closed rpc_code: 14.'>"
)


def dead(message, reason=DIED):
    return Message(Error(code=0, reason=reason), reply_to=message)


def as_if_on_ray(grid):
    grid.has_ray_workers = True
    return grid


def one_of_two_workers_dead(handle):
    """Return a handler: from the 6th task on a dead worker takes two of three."""
    numbers = count()

    def answer(message):
        number = next(numbers)
        if number < 5 or number % 3 == 0:
            return handle(message)
        return dead(message, UNAVAILABLE if number == 5 else DIED)

    return answer


@pytest.mark.parametrize("algorithm", ["hetero-asyncdrop", "fedbuff", "fedavg"])
def test_a_simulated_run_is_the_one_without_it(
    algorithm, tmp_path, caplog, monkeypatch
):
    whole = run(tmp_path / "whole", algorithm)
    caplog.clear()
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    broken = run(
        tmp_path / "broken",
        algorithm,
        handler=one_of_two_workers_dead(client),
        around=as_if_on_ray,
    )
    assert broken == whole
    kinds = {line.get("kind") for line in broken["history"]}
    assert "client-error" not in kinds
    warned = [m for m in caplog.messages if "worker of Flower's simulation" in m]
    assert len(warned) == 1


def test_elsewhere_a_device_that_says_so_is_not_believed(tmp_path):
    broken = run(
        tmp_path,
        "hetero-asyncdrop",
        handler=one_of_two_workers_dead(client),
        fraction_evaluate=0.0,
    )
    kinds = [line.get("kind") for line in broken["history"]]
    assert "client-error" in kinds


def test_real_devices_lose_the_task_and_are_not_quarantined():
    numbers = count()

    def handle(message):
        return dead(message) if 6 <= next(numbers) < 40 else plus_one(message)

    grid = as_if_on_ray(HandlerGrid(handle, delay=lambda message: 1.0))
    done = Run(grid, rounds=12).go()
    assert len(done.recorder.merged) == 24
    assert {kind for _, kind, _ in done.recorder.failures} == {"no-worker"}
    assert len(done.recorder.failures) == 34
    assert not done.run.fleet.readiness.quarantined(done.state.time)


@pytest.mark.parametrize("around", [as_if_on_ray, lambda grid: grid])
def test_a_cluster_that_is_gone_is_named_before_ray_waits_for_it(
    around, tmp_path, monkeypatch, caplog
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    run(tmp_path, "fedbuff", around=around)
    named = [message for message in caplog.messages if address in message]
    assert len(named) == (around is as_if_on_ray)
    assert all("unset RAY_ADDRESS" in message for message in named)


class Keeping(Mixing):
    """Needs what was sent, so that it can be sent again."""

    needs_base = True


def test_a_run_whose_workers_are_all_dead_ends_and_keeps_its_tasks():
    numbers = count()

    def handle(message):
        return dead(message) if next(numbers) >= 6 else plus_one(message)

    grid = as_if_on_ray(HandlerGrid(handle, delay=lambda message: 1.0))
    done = Run(
        grid,
        seconds=(1.0, 2.0, 3.0),
        rounds=12,
        patience=20.0,
        build_aggregator=lambda size: Keeping(0.5),
    ).go()
    assert done.state.ended == "timeout"
    assert len(done.recorder.merged) == 6
    assert done.recorder.failures == []
    assert len(done.state.in_flight) == 2  # a run that resumes sends them again
    assert grid.now < 60  # on the grid's clock, whatever the machine does meanwhile


class Ticks:
    now = 0.0

    def __call__(self):
        return self.now


def task():
    grid = HandlerGrid(plus_one)
    Run(grid, rounds=1).go()
    return grid.pushed[0]


def test_the_run_ends_when_nothing_else_comes_for_the_patience():
    timer, message = Ticks(), task()
    workers = DeadWorkers(possible=True, patience=10.0, timer=timer)
    assert workers.answered(dead(message))
    timer.now = 9.9
    assert workers.answered(dead(message))
    assert not workers.answered(plus_one(message))  # some worker lives
    timer.now = 15.0
    assert workers.answered(dead(message))
    timer.now = 25.0
    with pytest.raises(GridLostError, match="10 s every task came back from a dead"):
        workers.answered(dead(message))
    assert workers.count == 4


def test_waiting_longer_than_half_a_minute_does_not_help():
    timer, message = Ticks(), task()
    workers = DeadWorkers(possible=True, patience=3600.0, timer=timer)
    assert workers.answered(dead(message))
    timer.now = 30.0
    with pytest.raises(GridLostError, match="resume the run"):
        workers.answered(dead(message))


def test_what_is_no_death_of_a_worker():
    message = task()
    assert death_of_worker(plus_one(message)) is None
    assert death_of_worker(failing(message, DIED)) is None  # the ClientApp's own error
    assert (
        death_of_worker(dead(message, "<class 'ValueError'>:<'ActorDiedError'>"))
        is None
    )
    assert death_of_worker(dead(message)) == DIED
    assert death_of_worker(dead(message, UNAVAILABLE)) == UNAVAILABLE


def test_flowers_simulation_is_known_by_its_grid():
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid

    assert has_ray_workers(InMemoryGrid.__new__(InMemoryGrid))
    assert not has_ray_workers(HandlerGrid(plus_one))
    assert has_ray_workers(as_if_on_ray(HandlerGrid(plus_one)))


def test_rays_exceptions_have_these_names():
    exceptions = pytest.importorskip("ray").exceptions
    for name in ("ActorDiedError", "ActorUnavailableError", "NodeDiedError"):
        assert str(getattr(exceptions, name)) == f"<class 'ray.exceptions.{name}'>"
