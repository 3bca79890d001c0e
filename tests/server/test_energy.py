"""The joules of a simulated fleet, by hand."""

import pytest

from flwr_asyncdrop.fleet import DeviceProfile
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.server.callbacks import Callback
from tests.grids import HandlerGrid, RefusedError
from tests.runs import Run, plus_one

NUM_BYTES = 136  # of two floats as npy, each way
FAST = DeviceProfile(2.0, watts=3.0, joules_per_byte=0.5)
SLOW = DeviceProfile(4.0, watts=5.0, joules_per_byte=0.25)


class AtRounds(Callback):
    """Notes the joules at the end of each round."""

    def __init__(self):
        self.joules = []

    def on_round(self, state, number):
        self.joules.append(state.joules)


def run_of(*profiles, handler=plus_one, **kwargs):
    grid = HandlerGrid(handler, node_ids=range(1, len(profiles) + 1))
    return Run(grid, profiles=profiles, in_flight=len(profiles), **kwargs)


def test_two_devices_by_hand():
    """Their joules are counted when a task is sent, and when its reply is there.

    ====  ======================  ===========================================
    time  event                   joules
    ====  ======================  ===========================================
    0     fast and slow are sent  3 W * 2 s + 68 J, 5 W * 4 s + 34 J
    2     reply of fast           68 J, and its second task 6 J + 68 J
    4     reply of slow           34 J: round 1 ends with 304 J
    4     slow is sent            20 J + 34 J
    4     reply of fast           68 J, and nobody is sent: one is left
    8     reply of slow           34 J: 460 J
    ====  ======================  ===========================================
    """
    at_rounds = AtRounds()
    run = run_of(FAST, SLOW, rounds=2, callbacks=(at_rounds,)).go()
    assert run.recorder.orders[0].cost.bytes_down == NUM_BYTES
    assert run.recorder.times == [2.0, 4.0, 4.0, 8.0]
    assert at_rounds.joules == [304.0, 460.0]
    assert run.state.joules == 460.0


def test_a_fleet_that_says_nothing_of_energy_counts_none():
    assert run_of(DeviceProfile(2.0), DeviceProfile(4.0)).go().state.joules is None


def test_real_devices_count_none():
    grid = HandlerGrid(plus_one, node_ids=[1, 2])
    assert Run(grid).go().state.joules is None


def test_a_lost_task_takes_its_download_and_its_computing():
    device = DeviceProfile(2.0, dropout=0.5, watts=3.0, joules_per_byte=0.5)
    faults = FaultPolicy(quarantine_after=0)
    state = run_of(device, rounds=6, seed=1, faults=faults).go().state
    assert state.failures["dropout"] > 0
    assert state.joules == state.dispatched * (6 + 68) + 6 * 68


def test_what_arrives_too_late_takes_no_less():
    # From here on a reply of the slow device is late, and dropped.
    faults = FaultPolicy(deadline=1.0, late="drop", quarantine_after=0)
    shaky = DeviceProfile(4.0, jitter=1.0, watts=5.0, joules_per_byte=0.25)
    state = run_of(shaky, rounds=4, faults=faults).go().state
    assert state.failures["late"] > 0
    assert state.joules == state.dispatched * (20 + 34) + state.bytes_up * 0.25


def test_a_task_that_is_not_sent_takes_nothing():
    def refuse_first(message):
        if not run.recorder.failures:
            raise RefusedError
        return plus_one(message)

    run = run_of(FAST, handler=refuse_first, rounds=1)
    run.go()
    assert run.state.failures == {"not-sent": 1}
    assert run.state.joules == pytest.approx(6 + 2 * 68)
