"""Parts of a comparison: each run is one's, all agree, and none speaks for others."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from benchmarks.ray_nodes import RayNodes
from flwr_asyncdrop.checkpoint.files import all_checkpoints
from flwr_asyncdrop.cli import compare as compare_module
from flwr_asyncdrop.cli import worker
from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.events import Skipped, Started
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.cli.pool import RunPool
from flwr_asyncdrop.cli.runs import RunSpec, all_runs
from flwr_asyncdrop.cli.shards import DESCRIPTION, Shard, agree, deal, describe, shard
from flwr_asyncdrop.cli.variants import Variant
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.history import read_history, without_wall
from flwr_asyncdrop.storage.lock import FolderLock
from tests.nightly import NIGHTLY

SETTINGS = {"algo": "asyncdrop", "lr": 0.1, "in-flight": 4, "num-rounds": 3}
VARIANTS = [Variant("one", SETTINGS), Variant("other", {**SETTINGS, "lr": 0.2})]
SEEDS = [0, 1]
TINY = ["--model=mlp", "--num-rounds=40", "--local-steps=2", "--in-flight=3"]
TINY += ["--devices=6", "--levels=3", "--evaluate-every=60", "--checkpoint-every=3"]
COMPARE = ["compare", "--algos=async-fedavg,fedbuff", "--seeds=0", "--jobs=1", *TINY]


def runs_of(out, variants=VARIANTS, seeds=SEEDS, devices=10):
    return all_runs(variants, seeds, devices, out)


@pytest.mark.parametrize(
    ("text", "expected"), [("1/1", Shard(1, 1)), ("4/4", Shard(4, 4))]
)
def test_shards_are_numbered_from_1(text, expected):
    assert shard(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        *("0/4", "5/4", "1/0", "-1/4", "1/99999"),
        *("", "/", "1", "a/b", "1/4/2", "４/4"),
    ],
)
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ArgumentTypeError):
        shard(text)


def test_runs_are_dealt_as_by_hand(tmp_path):
    """Rows of the two variants, columns of the two seeds: 1 2 / 2 1."""
    dealt = deal(runs_of(tmp_path), 2, 2)
    assert [[run.name for run in runs] for runs in dealt] == [
        ["one seed 0", "other seed 1"],
        ["other seed 0", "one seed 1"],
    ]


@pytest.mark.parametrize("count", range(1, 9))
def test_each_run_is_in_one_shard_and_all_are_even(count, tmp_path):
    for num_variants, num_seeds in product((1, 2, 3, 5, 8, 12), (1, 2, 3, 4, 6)):
        pairs = [
            RunSpec("", tmp_path, {"v": v, "s": s}, 1)
            for s in range(num_seeds)
            for v in range(num_variants)
        ]
        dealt = deal(pairs, num_seeds, count)
        every = [run.settings for runs in dealt for run in runs]
        assert sorted(every, key=str) == sorted((p.settings for p in pairs), key=str)
        for chosen in ("", *product("v", range(num_variants))):
            assert_even(dealt, chosen)
        for chosen in product("s", range(num_seeds)):
            assert_even(dealt, chosen)


def assert_even(dealt, chosen):
    sizes = [
        sum(not chosen or run.settings[chosen[0]] == chosen[1] for run in runs)
        for runs in dealt
    ]
    assert max(sizes) - min(sizes) <= 1


def test_a_description_is_the_same_on_each_machine(tmp_path):
    def described(where, **more):
        settings = {**SETTINGS, "dataset": "fashion-mnist", "data-dir": where, **more}
        return describe(runs_of(tmp_path / where, [Variant("one", settings)]), SEEDS, 4)

    here = described("here")
    assert described("there", **{"keep-checkpoints": 3}) == here
    for _ in range(2):
        agree(tmp_path, here)
        assert (tmp_path / DESCRIPTION).read_bytes() == here
    assert [path.name for path in tmp_path.iterdir()] == [DESCRIPTION]


def with_lr(value):
    return [VARIANTS[0], Variant("other", {**SETTINGS, "lr": value})]


@pytest.mark.parametrize(
    ("count", "asked", "says"),
    [
        (3, {}, "(shards 4, now 3)"),
        (4, {"devices": 12}, "(devices 10, now 12)"),
        (4, {"seeds": [0, 1, 2]}, "(seeds [0, 1], now [0, 1, 2])"),
        (
            4,
            {"variants": VARIANTS[::-1]},
            "(algorithms and variants ['one', 'other'], now ['other', 'one'])",
        ),
        (4, {"variants": with_lr(0.3)}, "(other: lr 0.2, now 0.3)"),
    ],
)
def test_another_comparison_is_refused_by_what_differs(count, asked, says, tmp_path):
    agree(tmp_path, describe(runs_of(tmp_path), SEEDS, 4))
    seeds = asked.get("seeds", SEEDS)
    other = describe(runs_of(tmp_path, **asked), seeds, count)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        agree(tmp_path, other)
    assert "\n" not in str(caught.value)


def test_a_trace_counts_by_its_name_and_content(tmp_path):
    found = set()
    for folder, text in (("a", "1"), ("b", "1"), ("c", "2")):
        trace = tmp_path / folder / "fleet.csv"
        trace.parent.mkdir()
        trace.write_text(text)
        traced = [Variant("one", {**SETTINGS, "trace": str(trace)})]
        found.add(describe(runs_of(tmp_path, traced), SEEDS, 2))
    assert len(found) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "\0", '"x"'])
def test_what_is_no_description_is_refused(text, tmp_path):
    (tmp_path / DESCRIPTION).write_text(text)
    with pytest.raises(ConfigError, match="is no description of a comparison"):
        agree(tmp_path, describe(runs_of(tmp_path), SEEDS, 4))


def test_many_that_begin_at_once_agree(tmp_path):
    description = describe(runs_of(tmp_path), SEEDS, 4)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(agree, [tmp_path] * 32, [description] * 32))
    assert (tmp_path / DESCRIPTION).read_bytes() == description


def impatient(run, backend, channel):
    worker._PATIENCE = 0.1
    worker.work(run, backend, channel)


def test_a_run_that_somebody_else_does_is_skipped_and_named(tmp_path):
    (run,) = runs_of(tmp_path, VARIANTS[:1], [0])
    with FolderLock(run.folder):
        before = sorted(run.folder.iterdir())
        with RunPool([Backend()], impatient) as pool:
            events = [event for _, event in pool.do([run])]
        assert sorted(run.folder.iterdir()) == before
    assert events[0] == Started()
    assert isinstance(events[1], Skipped)
    assert f"process {os.getpid()} on " in events[1].holder


class BusyPool:
    """Everything that it is given is somebody else's."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return

    def do(self, runs):
        for run in runs:
            yield run, Started()
            yield run, Skipped("process 7 on node-3")


def test_a_shard_with_runs_that_were_skipped_has_not_succeeded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(compare_module, "RunPool", BusyPool)
    assert main([*COMPARE, "--seeds=0-1", f"--out={tmp_path}", "--shard=2/3"]) == 1
    shown = capsys.readouterr().out
    assert "skipped  async-fedavg seed 1 [1/1]: in use by process 7 on node-3" in shown
    assert "1 of 1 runs skipped: the same command does what their" in shown
    assert "shard 2/3: 0 of its 1 run complete" in shown
    assert "shard 1/3 lacks 2 of 2 runs: async-fedavg seed 0, fedbuff seed 1" in shown
    assert "the comparison lacks 4 of 4 runs" in shown
    assert "max. accuracy" not in shown


def test_a_description_that_was_replaced_meanwhile_is_noticed(
    tmp_path, monkeypatch, capsys
):
    class Replaces(BusyPool):
        def do(self, runs):
            other = describe(runs_of(tmp_path), SEEDS, 2)
            (tmp_path / DESCRIPTION).write_bytes(other)
            return super().do(runs)

    monkeypatch.setattr(compare_module, "RunPool", Replaces)
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
    shown = second.communicate(timeout=120)[0]
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
@pytest.mark.skipif(not NIGHTLY, reason="make nightly")
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
