"""A run that is refused has deleted nothing of the one that it was to replace."""

from itertools import count

import pytest

from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.checkpoint.files import all_checkpoints, run_of
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.observers import TensorBoardTracker
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.server.callbacks import Callback
from tests.checkpoint.small_runs import client
from tests.grids import HandlerGrid
from tests.runs import mlp, record
from tests.strategies import STRATEGIES


class Refuses(Callback):
    """Something that does not let the run begin, as a port that is taken does."""

    def on_start(self, state):
        raise ConfigError("the port is taken")


def train(folder, *others, resume=None, overwrite=True, history=True, stop=10**9):
    """Run in a folder; stop as Ctrl-C does, at the task of that number."""
    tasks = count(1)

    def device(message):
        if next(tasks) == stop:
            raise KeyboardInterrupt
        return client(message)

    points = TensorBoardTracker(folder / "points", overwrite=overwrite)
    lines = HistoryWriter(folder / "history.jsonl", overwrite=history)
    strategy = STRATEGIES["async-fedavg"](
        in_flight=2,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        callbacks=[points, lines, *others],
        checkpointer=Checkpointer(
            folder, resume=resume, overwrite=overwrite, every=1, keep=9
        ),
    )
    strategy.start(
        HandlerGrid(device, node_ids=range(4)),
        record(mlp().state_dict()),
        num_rounds=6,
        train_config={"lr": 0.1},
    )


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def stopped(tmp_path):
    """Return the folder of a run that was stopped half-way."""
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stop=8)
    assert len(all_checkpoints(tmp_path / "checkpoints")) > 2
    return tmp_path


def test_what_is_there_is_replaced_by_a_run_that_begins(stopped):
    runs = {run_of(path) for path in all_checkpoints(stopped / "checkpoints")}
    before = files(stopped)
    train(stopped)
    assert before[stopped / "history.jsonl"] not in files(stopped).values()
    assert len(list((stopped / "points").iterdir())) == 1
    assert run_of(all_checkpoints(stopped / "checkpoints")[-1]) not in runs


def test_a_history_that_may_not_be_replaced_costs_no_checkpoint(stopped):
    before = files(stopped)
    with pytest.raises(ConfigError, match="has the history of another run"):
        train(stopped, history=False)
    assert files(stopped) == before


def test_whoever_refuses_the_run_and_when_all_is_as_it_was(stopped):
    before = files(stopped)
    with pytest.raises(ConfigError, match="the port is taken"):
        train(stopped, Refuses())
    assert files(stopped) == before


def test_a_run_that_may_not_resume_leaves_what_came_after_its_checkpoint(stopped):
    before = files(stopped)
    oldest = all_checkpoints(stopped / "checkpoints")[-1]
    with pytest.raises(ConfigError, match="the port is taken"):
        train(stopped, Refuses(), resume=oldest, overwrite=False, history=False)
    assert files(stopped) == before
    train(stopped, resume=oldest, overwrite=False, history=False)


def test_one_that_was_refused_in_a_new_folder_is_in_nobodys_way(tmp_path):
    with pytest.raises(ConfigError, match="the port is taken"):
        train(tmp_path, Refuses(), overwrite=False, history=False)
    assert files(tmp_path) == {}
    train(tmp_path, overwrite=False, history=False)
