"""The ready app on Flower's own engine, and the same history on every engine."""

import json
import sys
import venv
from contextlib import suppress
from pathlib import Path
from shutil import copytree

import flwr
import psutil
import pytest
from safetensors.torch import load_file

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.simulation import LocalGrid
from tests.nightly import by_night, nightly, once_in_the_gate
from tests.processes import run_engine

ROOT = Path(__file__).parents[2]
NODES = 12
MARK = "ASYNCDROP_TEST"
SETTINGS = {
    "num-rounds": 3,
    "in-flight": 4,
    "levels": 4,
    "local-steps": 5,
    "seed": 5,
    "codec": "topk-q4",  # whose residuals lie in the nodes' contexts
}


def flwr_run(out_dir, nodes=NODES, python=sys.executable, **settings):
    values = {**SETTINGS, **settings, "out-dir": str(out_dir)}
    toml = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    return run_engine(
        [
            "scripts/flwr_run.py",
            ".",
            "--run-config",
            toml,
            "--federation-config",
            f"num-supernodes={nodes} client-resources-num-cpus=1",
        ],
        cwd=ROOT,
        python=python,
    )


def local_run(out_dir, workers, **settings):
    values = {**SETTINGS, **settings, "out-dir": str(out_dir)}
    with LocalGrid(
        "flwr_asyncdrop.client_app:app",
        num_nodes=NODES,
        workers=workers,
        run_config=values,
    ) as grid:
        return run_experiment(grid, RunConfig.parse(values))


def history(out_dir):
    return [without_wall(record) for record in read_history(out_dir / "history.jsonl")]


def processes_marked(mark):
    """Return the command lines of all processes with it in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
    return found


@once_in_the_gate
@pytest.mark.e2e
def test_the_same_seed_gives_the_same_history_on_every_engine(tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, str(tmp_path))
    done = flwr_run(tmp_path / "flower")
    assert done.returncode == 0, done.stdout + done.stderr
    assert processes_marked(str(tmp_path)) == []
    for name in ("history.jsonl", "model.safetensors", "run.png"):
        assert str(tmp_path / "flower" / name) in done.stdout
    engine = history(tmp_path / "flower")
    assert [record["event"] for record in engine].count("update") == 12
    assert engine[0]["config"]["algo"] == "hetero-asyncdrop"

    model = load_file(tmp_path / "flower" / "model.safetensors")
    for workers in (1, 2):
        out = local_run(tmp_path / f"local-{workers}", workers)
        assert history(out) == engine
        again = load_file(out / "model.safetensors")
        assert all(bool((again[name] == model[name]).all()) for name in model)


@once_in_the_gate
@pytest.mark.e2e
def test_another_seed_gives_another_history(tmp_path):
    one = local_run(tmp_path / "one", workers=0)
    other = local_run(tmp_path / "other", workers=0, seed=6)
    assert history(one)[1:] != history(other)[1:]


@pytest.fixture
def odd_folder(tmp_path, monkeypatch):
    """A folder with an odd name, in which a virtual environment and Flower are."""
    folder = tmp_path / "it's a naïve, 100% odd folder"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = next(folder.glob("lib/*/site-packages"))
    (packages / "others.pth").write_text(f"{Path(flwr.__file__).parents[1]}\n")
    copytree(Path(flwr.__file__).parent, packages / "flwr")
    for script in Path(sys.executable).parent.glob("fl*"):  # flwr, flower-superlink
        text = script.read_text().partition("\n")[2]
        copy = python.with_name(script.name)
        # As pip writes it, for a Python whose path is too odd for a first line.
        copy.write_text(f"""#!/bin/sh\n'''exec' "{python}" "$0" "$@"\n' '''\n{text}""")
        copy.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


@by_night
@pytest.mark.e2e
def test_two_nodes_in_a_folder_with_an_odd_name(odd_folder):
    """Two are Flower's default; the log says how to get more."""
    out = odd_folder / "run"
    python = odd_folder / "bin" / "python"
    done = flwr_run(out, nodes=2, python=python, **{"num-rounds": 2})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes for 4 tasks in flight" in done.stdout
    assert "num-supernodes=104" in done.stdout
    updates = [r for r in history(out) if r["event"] == "update"]
    assert len(updates) == 4


@once_in_the_gate
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        nightly("drop-rat", 0.5, "Key 'drop-rat' is not present"),  # by Flower
        ("drop-rate", 1.5, "drop-rate=1.5 must be in [0, 1)"),
    ],
)
def test_a_bad_key_or_value_is_the_last_line_before_the_run_starts(
    tmp_path, key, value, says
):
    done = flwr_run(tmp_path / "run", **{key: value})
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    kept, last = done.stderr.splitlines()[-2:]
    assert says in last
    if key == "drop-rate":  # also without our script
        assert done.stdout.rstrip().splitlines()[-1] == last
    assert not (tmp_path / "run").exists()
    said, _, log = kept.partition(" is kept in ")
    assert said == "the SuperLink's log"
    assert Path(log).stat().st_size > 0
    Path(log).unlink()
