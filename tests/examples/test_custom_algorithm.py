"""Everything that `examples/custom-algorithm` adds from outside of the package."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict

from flwr_asyncdrop import AsyncStrategy, LocalGrid, speed_levels, wire
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.app.client import probe
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.objectives import LocalTask
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.submodel import UnitGroup
from tests.grids import HandlerGrid
from tests.masks.choosing import choose
from tests.nightly import by_night, nightly
from tests.processes import run_engine
from tests.runs import mlp, plus_one

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "custom-algorithm"
ROLEX, SCAFFOLD = (
    "custom_algorithm.fedrolex:FedRolex",
    "custom_algorithm.scaffold:Scaffold",
)
SHORT = {"num-rounds": 6, "in-flight": 4, "local-steps": 10, "model": "mlp"}


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [name for name in sys.modules if name.startswith("custom_algorithm")]:
        del sys.modules[name]


def simulate(out, **settings):
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    given = {**SHORT, **named, "out-dir": str(out)}
    with LocalGrid(
        "flwr_asyncdrop.client_app:app", num_nodes=8, workers=0, run_config=given
    ) as grid:
        run_experiment(grid, RunConfig.parse(given))
    return list(read_history(out / "history.jsonl"))


def measured(history, name):
    return [r["metrics"][name] for r in history if r["event"] == "evaluation"]


def test_the_window_of_fedrolex_by_hand():
    from custom_algorithm.fedrolex import RollingMask

    group = [UnitGroup("layer", 4, "internal")]
    masks = RollingMask(0.5, 1)
    windows = []
    for number in (1, 2, 4, 5):
        (kept,) = choose(masks, group, server_round=number)
        windows.append(kept.tolist())
    assert windows == [[0, 1], [1, 2], [0, 3], [0, 1]]


@pytest.mark.parametrize("algo", [ROLEX, SCAFFOLD])
def test_an_algorithm_by_name_learns(tmp_path, algo):
    accuracy = measured(simulate(tmp_path / "run", algo=algo), "accuracy")
    assert max(accuracy) > accuracy[0] + 0.1


def test_its_own_key_makes_a_difference(tmp_path):
    one, other = (
        simulate(tmp_path / str(step), algo=ROLEX, rolling_step=step, num_rounds=2)
        for step in (1, 7)
    )
    assert one[0]["config"]["rolling-step"] == 1
    assert measured(one, "loss") != measured(other, "loss")


def test_scaffold_sends_as_much_again_and_fedrolex_less(tmp_path):
    full = simulate(tmp_path / "full", algo="fedbuff")
    extra = simulate(tmp_path / "extra", algo=SCAFFOLD)
    less = simulate(tmp_path / "less", algo=ROLEX)
    sent = [run[-1]["bytes_up"] for run in (full, extra, less)]
    assert sent[1] == 2 * sent[0]
    assert sent[2] < 0.75 * sent[0]


def test_all_that_trains_has_a_control_variate():
    """A complex weight had none, and each of its tasks raised a KeyError."""
    from custom_algorithm.scaffold import CONTROL, ControlledBuffer

    state = {
        "w": torch.zeros(2, dtype=torch.complex64),
        "b": torch.zeros(2),
        "count": torch.tensor(0),
    }
    assert ControlledBuffer(1, 0.5).extra(state)[CONTROL].keys() == {"w", "b"}


def test_control_variates_correct_the_drift(tmp_path):
    """Without local steps' drift the variates cancel: the first task is FedBuff's."""
    plain = simulate(tmp_path / "plain", algo="fedbuff", weighting="constant")
    controlled = simulate(tmp_path / "controlled", algo=SCAFFOLD)
    losses = measured(plain, "loss"), measured(controlled, "loss")
    assert losses[0][0] == losses[1][0]
    assert losses[0][-1] != losses[1][-1]


def test_a_device_of_scaffold_can_say_how_fast_it_is():
    """Its objective needs the learning rate, as `LocalTask.config` has it."""
    node = {"partition-id": 0, "num-partitions": 8}
    settings = {"algo": SCAFFOLD, "model": "mlp"}
    assert probe(Context(1, 1, node, RecordDict(), settings)) > 0


def test_scaffold_takes_its_tensors_where_they_are():
    """On a GPU the model and all that came with it are there."""
    from custom_algorithm.scaffold import CONTROL, Controlled

    with torch.device("meta"):  # nothing can be copied from there
        model = torch.nn.Linear(3, 2)
        extra = {CONTROL: {n: torch.zeros_like(p) for n, p in model.named_parameters()}}
        task = LocalTask(model, torch.nn.MSELoss(), {"lr": 0.1}, extra=extra)
        steps = Controlled().begin(task)
        steps.loss(model(torch.zeros(4, 3)), torch.zeros(4, 2)).backward()
    steps.adjust_gradients()
    assert steps.finish()[CONTROL].keys() == extra[CONTROL].keys()


def test_scaffold_as_its_readme_runs_it_learns_and_loses_nothing(tmp_path):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    (words,) = re.findall(r'--run-config "(algo=[^"]*:Scaffold[^"]*)"', text)
    settings = tomllib.loads(words.replace(" ", "\n"))
    history = simulate(tmp_path / "run", **settings, **{"local-steps": 50})
    accuracy = measured(history, "accuracy")
    assert history[-1]["failures"] == {}
    assert accuracy[-1] > accuracy[0] + 0.1


def test_a_run_with_state_on_its_clients_is_not_resumed(tmp_path):
    settings = {**SHORT, "algo": SCAFFOLD, "resume": str(tmp_path)}
    with pytest.raises(ConfigError, match="keeps state on its clients"):
        run_experiment(None, RunConfig.parse(settings))


@pytest.mark.parametrize(
    ("data", "model", "metric"),
    [("diabetes", "regressor", "mae"), nightly("sums", "writer", "perplexity")],
)
def test_a_task_that_is_no_classification(tmp_path, data, model, metric):
    history = simulate(
        tmp_path / "run",
        dataset=f"custom_algorithm.data:{data}",
        model=f"custom_algorithm.models:{model}",
        partition="iid",
        lr=0.1,
    )
    losses, others = measured(history, "loss"), measured(history, metric)
    assert losses[-1] < losses[0]
    assert others[-1] < others[0]
    updates = [r for r in history if r["event"] == "update"]
    assert {r["compute"] < 1 for r in updates} == {True}, "submodels are smaller"


def test_masks_as_an_object_in_a_strategy():
    from custom_algorithm.fedrolex import RollingMask

    strategy = AsyncStrategy(
        mlp(),
        torch.zeros(1, 4),
        aggregator=Mixing(1.0),
        masks=RollingMask(0.5, 1),
        in_flight=1,
        fleet=speed_levels,
        min_available_nodes=1,
    )
    result = strategy.start(
        HandlerGrid(plus_one), ArrayRecord(mlp().state_dict()), num_rounds=2
    )
    before, after = mlp().state_dict(), wire.from_record(result.arrays)
    moved = (after["0.bias"] - before["0.bias"]).round().tolist()
    assert moved == [1, 2, 2, 1, 0, 0]


@by_night
@pytest.mark.e2e
def test_flower_runs_it(tmp_path):
    project = shutil.copytree(FOLDER, tmp_path / "project")
    out = tmp_path / "out"
    done = run_engine(
        [
            str(ROOT / "scripts" / "flwr_run.py"),
            str(project),
            "--run-config",
            f"algo='{SCAFFOLD}' num-rounds=2 in-flight=4 out-dir='{out}'",
            "--federation-config",
            "num-supernodes=6 client-resources-num-cpus=1",
        ],
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout
    history = list(read_history(out / "history.jsonl"))
    assert history[0]["algorithm"] == SCAFFOLD
    assert [record["event"] for record in history].count("update") == 8
