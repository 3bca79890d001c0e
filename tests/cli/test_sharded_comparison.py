"""`asyncdrop compare --shard` as people call it: alone, together, killed, on Ray."""

import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.ray_nodes import RayNodes
from flwr_asyncdrop.checkpoint.files import all_checkpoints
from flwr_asyncdrop.cli import batch
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.cli.runs import all_runs
from flwr_asyncdrop.cli.shards import DESCRIPTION, Shard, describe
from flwr_asyncdrop.cli.variants import Variant
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.storage.lock import FolderLock
from tests.cli.busy_pool import BusyPool
from tests.nightly import by_night

TINY = ["--model=mlp", "--num-rounds=40", "--local-steps=2", "--in-flight=3"]
TINY += ["--devices=6", "--levels=3", "--evaluate-every=60", "--checkpoint-every=3"]
COMPARE = ["compare", "--algos=async-fedavg,fedbuff", "--seeds=0", "--jobs=1", *TINY]


def test_a_shard_with_runs_that_were_skipped_has_not_succeeded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(batch, "RunPool", BusyPool)
    assert main([*COMPARE, "--seeds=0-1", f"--out={tmp_path}", "--shard=2/3"]) == 1
    shown = capsys.readouterr().out
    assert "skipped  async-fedavg seed 1 [1/1]: in use by process 7 on node-3" in shown
    assert "1 of 1 run skipped: the same command does what their" in shown
    assert "shard 2/3: 0 of its 1 run complete" in shown
    assert "shard 1/3 lacks 2 of 2 runs: async-fedavg seed 0, fedbuff seed 1" in shown
    assert "the comparison lacks 4 of 4 runs" in shown
    assert "max. accuracy" not in shown


def test_a_description_that_was_replaced_meanwhile_is_noticed(
    tmp_path, monkeypatch, capsys
):
    class Replaces(BusyPool):
        def do(self, runs):
            other = describe(all_runs([Variant("one", {})], [0], 10, tmp_path), [0], 2)
            (tmp_path / DESCRIPTION).write_bytes(other)
            return super().do(runs)

    monkeypatch.setattr(batch, "RunPool", Replaces)
    assert main([*COMPARE, f"--out={tmp_path}", "--shard=1/2"]) == 2
    assert "of another comparison (devices 10, now 6" in capsys.readouterr().err


def test_a_shard_is_one_process(tmp_path, capsys):
    command = [*COMPARE, f"--out={tmp_path}", "--shard=1/2"]
    with ThreadPoolExecutor(1) as other, FolderLock(tmp_path, Shard(1, 2).lock):
        assert other.submit(main, command).result() == 1
    error = capsys.readouterr().err
    assert f"shard 1/2 of {tmp_path} is done by another thread" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [DESCRIPTION]


def started(out, number):
    command = [sys.executable, "-m", "flwr_asyncdrop", *COMPARE, f"--out={out}"]
    return subprocess.Popen(
        [*command, f"--shard={number}/2"], stdout=subprocess.PIPE, text=True
    )


@by_night
def test_shards_come_to_what_one_command_does_though_one_is_killed(tmp_path, capsys):
    shared = tmp_path / "shared"
    run = shared / "async-fedavg" / "seed-0"
    first, second = started(shared, 1), started(shared, 2)
    while len(all_checkpoints(run / "checkpoints")) < 2:
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    begun = (run / "history.jsonl").read_text()
    assert '"end"' not in begun
    shown = second.communicate(timeout=600)[0]
    assert second.returncode == 0
    assert shown.count("started") == shown.count("complete fedbuff") == 1
    assert "shard 2/2: 1 of its 1 run complete" in shown
    assert "shard 1/2 lacks 1 of 1 run: async-fedavg seed 0" in shown
    assert f"the comparison lacks 1 of 2 runs in {shared}" in shown
    assert f"when it is there: asyncdrop report {shared}" in shown
    assert "comparison is complete" not in shown

    # That of the second one comes from another disk.
    apart = tmp_path / "apart"
    shutil.copytree(shared, apart)
    assert main([*COMPARE, f"--out={apart}", "--shard=1/2"]) == 0
    shown = capsys.readouterr().out
    assert "shard 1/2: 1 of its 1 run complete" in shown
    assert f"the comparison is complete: 2 runs in {apart}" in shown
    assert "max. accuracy" in shown
    again = (apart / "async-fedavg" / "seed-0" / "history.jsonl").read_text()
    assert again.splitlines()[:9] == begun.splitlines()[:9]  # with their wall times

    for algo in ("async-fedavg", "fedbuff"):
        out = tmp_path / "alone" / algo / "seed-0"
        assert main(["simulate", f"--algo={algo}", *TINY, f"--out={out}"]) == 0
    assert histories(apart) == histories(tmp_path / "alone")


@pytest.mark.e2e
@by_night
def test_a_shard_on_a_ray_cluster_is_that_of_one_machine(tmp_path, capsys):
    pytest.importorskip("ray")
    with RayNodes(1, {"PYTHONPATH": ""}) as nodes:
        on_ray = ["--backend=ray", f"--address={nodes.address}"]
        command = [*COMPARE, *on_ray, f"--out={tmp_path / 'ray'}"]
        assert main([*command, "--shard=2/2"]) == 0
    shown = capsys.readouterr().out
    assert "shard 2/2: 1 of its 1 run complete" in shown
    assert "shard 1/2 lacks 1 of 1 run: async-fedavg seed 0" in shown
    out = tmp_path / "alone" / "fedbuff" / "seed-0"
    assert main(["simulate", "--algo=fedbuff", *TINY, f"--out={out}"]) == 0
    assert histories(tmp_path / "ray") == histories(tmp_path / "alone")


def histories(out):
    return {
        path.parent.relative_to(out).as_posix(): [
            without_wall(line) for line in read_history(path)
        ]
        for path in sorted(out.rglob("history.jsonl"))
    }
