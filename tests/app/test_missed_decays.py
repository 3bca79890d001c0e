"""A run that is over before its learning rate has decayed says so."""

import pytest

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.lr_schedule import ExpectedSchedule
from flwr_asyncdrop.app.missed_decays import MissedDecays
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.state import RunState
from tests.app.own import APP, TINY


def warnings_of(out, caplog, **settings):
    told = {key.replace("_", "-"): value for key, value in settings.items()}
    config = RunConfig.parse({**TINY, "out-dir": str(out), **told})
    with LocalGrid(APP, num_nodes=4, workers=0, run_config=config.settings) as grid:
        run_experiment(grid, config)
    return [message for message in caplog.messages if "lr had decayed" in message]


@pytest.mark.parametrize(("seconds", "decays"), [(3.5, 0), (6.5, 1)])
def test_decays_that_did_not_come_are_counted(tmp_path, caplog, seconds, decays):
    # A task takes a second, so that the first decay is sent after 5 of 10 rounds.
    said = warnings_of(tmp_path, caplog, num_rounds=10, max_seconds=seconds)
    share = ",".join(f"{part * seconds:g}s" for part in (0.5, 0.75))
    assert said == [
        f"max-seconds={seconds:g} ended the run when lr had decayed {decays} of 2 "
        "times: lr-milestones='0.5,0.75' are shares of all 10 rounds. Of the time they "
        f"are {share!r}"
    ]


@pytest.mark.parametrize("max_seconds", [0.0, 3.5])
@pytest.mark.parametrize(
    ("milestones", "decays", "missed"), [("1s,9s", 1, 9), ("3.5s,4.5s", 0, 3.5)]
)
def test_milestones_in_seconds_may_be_beyond_the_end(
    tmp_path, caplog, max_seconds, milestones, decays, missed
):
    rounds = 10 if max_seconds else 3
    told = {"num_rounds": rounds, "max_seconds": max_seconds}
    said = warnings_of(tmp_path, caplog, **told, lr_milestones=milestones)
    assert said == [
        f"the run ended at {max_seconds or 3:g} s, when lr had decayed {decays} of 2 "
        f"times: the milestone {missed:g}s of lr-milestones={milestones!r} was not "
        "before that"
    ]


def test_devices_that_were_slower_than_expected(caplog):
    config = RunConfig(num_rounds=10, in_flight=2, levels=1)
    schedule = ExpectedSchedule(config)
    schedule([TaskCost(1.0, 0, 0)] * 2, 2)
    state = RunState.start_from({}, seed=0)
    state.updates, state.fastest_updates, state.time = 20, 6, 40.0
    MissedDecays(config, schedule).on_end(state)
    assert caplog.messages == [
        "num-rounds=10 were over when lr had decayed 1 of 2 times: the milestone 0.75 "
        "of lr-milestones='0.5,0.75' is 8 updates of the fastest devices, which did 6. "
        "Of the time they are '20s,30s'"
    ]


def test_a_run_that_is_not_complete_says_nothing(caplog):
    config = RunConfig(num_rounds=10, in_flight=2, levels=1)
    schedule = ExpectedSchedule(config)
    schedule([TaskCost(1.0, 0, 0)] * 2, 2)
    state = RunState.start_from({}, seed=0)
    state.updates, state.fastest_updates, state.time = 19, 0, 40.0
    MissedDecays(config, schedule).on_end(state)
    assert caplog.messages == []


@pytest.mark.parametrize(
    "settings",
    [
        {"num_rounds": 10},
        {"num_rounds": 3, "max_seconds": 100.0},
        {"num_rounds": 10, "max_seconds": 9.5},
        {"num_rounds": 1, "algo": "fedavg"},
        {"num_rounds": 10, "lr_milestones": "1s,3s"},
        {"num_rounds": 10, "lr_milestones": "1s,30s", "lr_gamma": 1.0},
        {"num_rounds": 10, "max_seconds": 3.5, "lr_milestones": ""},
        {"num_rounds": 10, "max_seconds": 3.5, "lr_gamma": 1.0},
    ],
)
def test_otherwise_nothing_is_said(tmp_path, caplog, settings):
    assert warnings_of(tmp_path, caplog, **settings) == []
