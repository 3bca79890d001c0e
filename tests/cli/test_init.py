"""``asyncdrop init``: what it makes runs, and nothing is left of what it refuses."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict
from packaging.utils import is_normalized_name

from flwr_asyncdrop import wire
from flwr_asyncdrop.cli import init
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.doctor import superlink
from tests.nightly import by_night
from tests.processes import run_engine
from tests.runs import KEYS

ROOT = Path(__file__).parents[2]


def run_in(folder, *words):
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "thermostats"
    assert main(["init", str(folder)]) == 0
    return folder


@by_night
def test_its_own_test_trains_it(project):
    """The test trains on a LocalGrid."""
    done = run_in(project, "-m", "pytest", "-p", "no:cacheprovider", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_simulated_device_is_the_same_on_every_node(project, monkeypatch):
    """Flower's engine draws the ids of nodes anew: runs of one seed differed."""
    monkeypatch.syspath_prepend(str(project))
    client, task = (import_module(f"thermostats.{n}") for n in ("client_app", "task"))
    model, run_config = task.Net().state_dict(), {"local-epochs": 1, "batch-size": 32}

    def trained(device, node):
        order = wire.TaskConfig(1, 7, device, 10)
        arrays = wire.to_record(model)
        message = wire.make_task(arrays, {"lr": 0.1}, order, node_id=5, keys=KEYS)
        place = {"partition-id": node, "num-partitions": 10}
        reply = client.app(message, Context(1, 5, place, RecordDict(), run_config))
        return reply.content["arrays"], reply.content["metrics"]

    assert trained(3, node=0) == trained(3, node=8)
    assert trained(3, node=0) != trained(4, node=0)


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids="-".join)
def test_it_is_as_ruff_wants_it(project, words):
    done = run_in(project, "-m", "ruff", *words, "--isolated", "--no-cache", ".")
    assert done.returncode == 0, done.stdout


def test_the_longest_name_fits_into_the_lines(tmp_path):
    assert main(["init", str(tmp_path / "x" / "y"), "--name", "n" * 40]) == 0
    done = run_in(
        tmp_path, "-m", "ruff", "format", "--isolated", "--no-cache", "--check", "."
    )
    assert done.returncode == 0, done.stdout


def test_it_says_that_flwr_run_does_not_start_here(tmp_path, capsys, monkeypatch):
    """The command that it shows ends with Flower's "Internal server error" there."""
    spec = SimpleNamespace(origin="/home/me/my project/.venv/flwr/__init__.py")
    monkeypatch.setattr(superlink, "find_spec", lambda name: spec)
    monkeypatch.setattr(superlink, "needs_quotes", lambda python: False)
    assert main(["init", str(tmp_path / "boilers")]) == 0
    *commands, line = capsys.readouterr().out.splitlines()
    assert commands[-1].endswith(init._RUN)
    assert line.startswith("warning SuperLink: `flwr run` fails from /home/me/my proj")
    assert " -> put the virtual environment into a folder without any" in line


def test_flower_reads_its_pyproject(project):
    read = tomllib.loads((project / "pyproject.toml").read_text())
    app = read["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "thermostats.server_app:app",
        "clientapp": "thermostats.client_app:app",
    }
    assert is_normalized_name(read["project"]["name"])
    assert read["project"]["dependencies"][0].startswith("flwr-asyncdrop")
    sources = "".join(path.read_text() for path in project.rglob("*.py"))
    keys = app["config"]
    assert [key for key in keys if f'"{key}"' not in sources] == []


def test_the_last_lines_can_be_pasted(tmp_path, capsys):
    folder = tmp_path / "two words"
    assert main(["init", str(folder), "--name", "my_net"]) == 0
    _, *commands = capsys.readouterr().out.splitlines()
    assert commands == [
        f"cd '{folder}' && pip install -e '.[dev]'",
        "pytest",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream "
        '--federation-config "num-supernodes=10 client-resources-num-cpus=1"',
    ]
    assert (folder / "my_net" / "task.py").exists()
    assert "my-net" in (folder / "README.md").read_text()
    left = [p for p in folder.rglob("*") if p.is_file() and "$" in p.read_text()]
    assert left == []


def test_a_folder_that_begins_with_a_dash_can_be_gone_to(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--name", "my_net", "--", "-lead"]) == 0
    _, first, *_ = capsys.readouterr().out.splitlines()
    assert first == "cd ./-lead && pip install -e '.[dev]'"


def test_a_folder_that_is_empty_is_filled(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main(["init", "."]) == 0
    assert (folder / "here" / "__init__.py").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-net", "e.g. --name my_net"),
        ("9", "e.g. --name my_project"),
        ("class", "e.g. --name my_project"),
        ("_net", "e.g. --name net"),
        ("n" * 41, f"e.g. --name {'n' * 40}"),
        ("näme", "e.g. --name n_me"),
        ("torch", "e.g. --name my_torch"),
        ("json", "another module"),
        ("flwr_asyncdrop", "another module"),
        ("tests", "another module"),
    ],
)
@pytest.mark.parametrize("by", ["folder", "flag"])
def test_a_name_that_no_package_can_have(name, said, by, tmp_path, capsys):
    words = (
        [str(tmp_path / name)] if by == "folder" else [str(tmp_path / "x"), "--name"]
    )
    assert main(["init", *words, *([name] if by == "flag" else [])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(name) in line
    assert "with --name" in line
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path, capsys):
    (tmp_path / ".hidden").write_text("mine")
    assert main(["init", str(tmp_path), "--name", "net"]) == 2
    assert f"{tmp_path} is not empty: choose a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [".hidden"]


@pytest.mark.parametrize("reads", ["nobody", "nothing is open"])
def test_it_is_made_also_when_nobody_reads_what_is_next(reads, tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe if reads == "nobody" else None)
        assert main(["init", str(tmp_path / "net"), "--name", "some_net"]) == 0
    assert (tmp_path / "net" / "pyproject.toml").exists()


@pytest.mark.parametrize("below", ["", "net"])
def test_a_link_to_nothing_is_named(below, tmp_path, capsys):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert main(["init", str(link / below), "--name", "net"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{link} is a link to {tmp_path / 'gone'}, which is not there" in line
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_no_name_is_not_this_folder(tmp_path, monkeypatch, capsys):
    """As ``init "$DIR"`` says where DIR is not set."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "", "--name=mine"]) == 2
    assert "DIR is empty: name a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "net").write_text("mine")
    assert main(["init", str(tmp_path / "net")]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_project_half_written(there, error, tmp_path, monkeypatch):
    folder = tmp_path / "a" / "net"
    if there:
        folder.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    write, written = Path.write_text, []

    def fails_later(path, *args, **options):
        written.append(path)
        if len(written) == 5:
            raise error
        return write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", fails_later)
    assert main(["init", str(folder)]) in (1, 130)
    assert len(written) == 5
    assert sorted(tmp_path.rglob("*")) == before


def test_every_template_is_a_file_of_the_project():
    folder = Path(init.__file__).with_name("project")
    on_disk = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert on_disk == {f"{template}.tmpl" for template in init.TEMPLATES.values()}


@pytest.mark.e2e
@by_night
def test_flower_runs_it(project):
    script = str(ROOT / "scripts" / "flwr_run.py")
    settings = ["--run-config", "num-server-rounds=3"]
    resources = "num-supernodes=10 client-resources-num-cpus=1"
    nodes = ["--federation-config", resources]
    done = run_engine([script, str(project), *settings, *nodes], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "update 24/24" in done.stdout + done.stderr


def test_links_that_go_round_are_refused(tmp_path, capsys):
    """They ended in a RuntimeError."""
    (tmp_path / "round").symlink_to("round")
    assert main(["init", str(tmp_path / "round" / "mine")]) == 2
    assert "round is a link to round, which is not there" in capsys.readouterr().err
