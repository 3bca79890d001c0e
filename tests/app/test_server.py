import shlex
import subprocess
from errno import ENOSPC

import pytest
from flwr.common.config import parse_config_args

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.app import server
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.run_folder import output_dir
from flwr_asyncdrop.app.server import checkpointer_of, run_experiment
from flwr_asyncdrop.checkpoint.files import write as write_checkpoint
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.versions import version_of
from tests.app.own import APP, TINY


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert checkpointer_of(RunConfig(checkpoint_every=0), tmp_path, "") is None


def test_the_run_config_says_when_and_where(tmp_path):
    config = RunConfig(checkpoint_every=3, keep_checkpoints=5)
    checkpoints = checkpointer_of(config, tmp_path, "go on")
    assert (checkpoints.every, checkpoints.keep) == (3, 5)
    assert checkpoints.path == tmp_path / "checkpoints"
    assert (checkpoints.resume, checkpoints.command) == (None, "go on")
    assert checkpoints.settings == config.settings
    assert checkpoints.defaults == RunConfig().settings


def test_flwr_run_is_told_all_that_the_run_was_told(tmp_path):
    told = {"algo": "fedbuff", "lr": 0.1, "download": True, "out-dir": "/old"}
    told |= {"dataset": "cifar10", "data-dir": "/data"}
    config = RunConfig.parse(told)
    command = checkpointer_of(config, tmp_path, "").command(0)
    *words, run_config = shlex.split(command)
    assert words == ["flwr", "run", ".", "--run-config"]
    again = RunConfig.parse(parse_config_args([run_config]))
    assert again.settings == config.settings | {"out-dir": "", "resume": str(tmp_path)}


@pytest.mark.parametrize(
    "name",
    [
        *("it's", "$HOME `x`", 'a "b"', "c\\d", """'"$\\""", "wow!x", "it's so!"),
        *("two  blanks", "new\nline", "new\nline's", "é"),
    ],
)
def test_a_shell_and_flower_read_any_folder(name, tmp_path):
    command = checkpointer_of(RunConfig(), tmp_path / name, "").command(0)
    shown = command.replace("flwr run . --run-config", "printf %s")
    told = subprocess.run(
        ["bash", "-c", shown], check=True, capture_output=True, text=True
    )
    assert parse_config_args([told.stdout]) == {"resume": str(tmp_path / name)}


@pytest.mark.parametrize(
    ("clock", "place"), [("virtual", ["."]), ("wall", [".", "CONNECTION"])]
)
def test_what_resumes_a_real_fleets_run_has_a_place_for_its_connection(
    clock, place, tmp_path
):
    """Without one Flower simulates, on the machine of whoever types it."""
    command = checkpointer_of(RunConfig(clock=clock), tmp_path, "").command(0)
    assert shlex.split(command)[2:-1] == [*place, "--run-config"]


def test_an_algorithms_name_may_be_no_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with output_dir(RunConfig(algo="tests.app.own:Slashed")) as out:
        assert out.parent == tmp_path / "runs"
        assert out.name.endswith("-mine_kept")


def test_going_on_needs_a_checkpoint(tmp_path):
    config = RunConfig(resume=str(tmp_path))
    with pytest.raises(CheckpointError, match="has no checkpoint to resume from"):
        checkpointer_of(config, tmp_path, "").load({})


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_the_command_names_the_simulated_nodes_that_a_run_waits_for(clock, tmp_path):
    config = RunConfig(clock=clock, out_dir=str(tmp_path))
    body = {"run": "one", "settings": config.settings, "updates": 8, "devices": 10}
    write_checkpoint(tmp_path / "checkpoints", body | {"parts": {}}, {})
    with pytest.raises(ConfigError, match="to resume it: flwr run") as refused:
        run_experiment(None, config)
    named = '--federation-config "num-supernodes=10"' in str(refused.value)
    assert named == (clock == "virtual")


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_so_does_that_of_a_run_that_is_interrupted(clock, tmp_path):
    """Flower would start another number of nodes, and the run would wait for these."""
    command = checkpointer_of(RunConfig(clock=clock), tmp_path, "").command(7)
    named = command.endswith(' --federation-config "num-supernodes=7"')
    assert named == (clock == "virtual")


def test_so_does_that_of_one_whose_files_the_disk_does_not_take(tmp_path, monkeypatch):
    write = [server.write_whole, full]
    monkeypatch.setattr(server, "write_whole", lambda *given: write.pop()(*given))
    settings = TINY | {"out-dir": str(tmp_path), "num-rounds": 1}
    config, said = RunConfig.parse(settings), []
    with LocalGrid(APP, num_nodes=4, workers=0, run_config=config.settings) as grid:
        run_experiment(grid, config, say=said.append)
    (line,) = said
    assert "No space left on device; waiting until that is possible" in line
    assert line.endswith(' --federation-config "num-supernodes=4")')


def test_a_history_says_which_version_made_it(tmp_path):
    config = RunConfig.parse(TINY | {"out-dir": str(tmp_path), "num-rounds": 1})
    with LocalGrid(APP, num_nodes=4, workers=0, run_config=config.settings) as grid:
        run_experiment(grid, config)
    first = next(iter(read_history(tmp_path / "history.jsonl")))
    assert first["wall"]["flwr-asyncdrop"] == version_of("flwr-asyncdrop")


def full(*_):
    raise OSError(ENOSPC, "No space left on device")
