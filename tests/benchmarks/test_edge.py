"""What is sent, and that nothing of a real deployment stays behind."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.chaos import deployment
from benchmarks.chaos.deployment import Deployment
from benchmarks.edge.volume import volume_figures
from scripts import flwr_run
from tests.nightly import by_night
from tests.processes import superlink_starts

ROOT = Path(__file__).parents[2]


def of(folder):
    """The processes that were started with this temporary folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return [each for each in found if each.pid != os.getpid()]


@pytest.mark.e2e
@superlink_starts
def test_a_benchmark_that_is_ended_leaves_neither_processes_nor_folders(tmp_path):
    running = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.edge"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in running.stderr:
        if "one task in flight" in line:
            break
    assert len(of(tmp_path)) > 1
    running.terminate()
    assert running.wait(300) == 128 + 15
    running.stderr.close()
    assert of(tmp_path) == []
    assert not list(tmp_path.glob("edge-*"))


@pytest.mark.e2e
def test_a_deployment_that_does_not_start_leaves_no_process(tmp_path, monkeypatch):
    def nobody_listens(address):
        time.sleep(0.5)
        raise RuntimeError(f"nothing listens on {address}")

    monkeypatch.setattr(deployment, "_wait_for", nobody_listens)
    with pytest.raises(RuntimeError, match="nothing listens"):
        Deployment(tmp_path, 1, TMPDIR=str(tmp_path))
    assert of(tmp_path) == []


def test_from_a_path_that_flower_cannot_read_its_code_is_copied(tmp_path, monkeypatch):
    flower = tmp_path / "my flower" / "flwr"
    flower.mkdir(parents=True)
    (flower / "__init__.py").touch()
    spec = SimpleNamespace(origin=str(flower / "__init__.py"))
    monkeypatch.setattr(flwr_run, "find_spec", lambda name: spec)
    program = tmp_path / "flower-superlink"
    program.write_text('#!/bin/sh\necho "$PYTHONPATH"; ls "${PYTHONPATH%%:*}"\n')
    program.chmod(0o755)
    monkeypatch.setattr(deployment, "_BIN", tmp_path)
    monkeypatch.setattr(deployment, "_wait_for", lambda address: None)
    home = tmp_path / "a home"
    home.mkdir()
    with Deployment(home, 0, PYTHONPATH="/mine") as started:
        started.superlink.wait(10)
        path, listing = started.log_of(started.superlink).splitlines()
    copies, mine = path.split(os.pathsep)
    assert listing == "flwr"
    assert mine == "/mine"
    assert " " not in copies
    assert not Path(copies).exists()  # when all has ended


@by_night
def test_a_submodel_of_a_quarter_less_is_little_more_than_half_of_the_bytes():
    value = {figure.name: figure.value for figure in volume_figures()}
    for suffix in ("", "_resnet34"):
        full = value[f"update_bytes_full{suffix}"]
        sliced = value[f"update_bytes_sliced{suffix}"]
        assert 0.5 < sliced / full < 0.62
        assert value[f"update_bytes_q4{suffix}"] < sliced / 6
    # 21,282,122 parameters and 17,060 statistics, 4 bytes each, there and back
    assert 170_000_000 < value["update_bytes_full_resnet34"] < 172_000_000
