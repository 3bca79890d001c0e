"""A run that its time ends before the learning rate has decayed says so."""

from types import SimpleNamespace

import pytest

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.missed_decays import MissedDecays
from flwr_asyncdrop.app.server import run_experiment
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


@pytest.mark.parametrize(
    "settings",
    [
        {"num_rounds": 10},
        {"num_rounds": 3, "max_seconds": 100.0},
        {"num_rounds": 10, "max_seconds": 9.5},
        {"num_rounds": 10, "max_seconds": 3.5, "lr_milestones": "1s,9s"},
        {"num_rounds": 10, "max_seconds": 3.5, "lr_milestones": ""},
        {"num_rounds": 10, "max_seconds": 3.5, "lr_gamma": 1.0},
    ],
)
def test_otherwise_nothing_is_said(tmp_path, caplog, settings):
    assert warnings_of(tmp_path, caplog, **settings) == []


def test_a_run_that_resumes_knows_how_far_the_rate_had_decayed(caplog):
    # The tasks that were out are all that it still does.
    out = SimpleNamespace(lr_factor=0.01)
    state = SimpleNamespace(in_flight={"a task": out}, late={}, time=3.5)
    decays = MissedDecays(RunConfig(max_seconds=3.5))
    decays.on_resume(state)
    decays.on_end(state)
    assert caplog.messages == []
