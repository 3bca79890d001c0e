"""Parts of a comparison: each run is one's, all agree, and none speaks for others."""

import os
import re
from argparse import ArgumentTypeError
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from flwr_asyncdrop.cli import worker
from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.events import Skipped, Started
from flwr_asyncdrop.cli.pool import RunPool
from flwr_asyncdrop.cli.runs import RunSpec, all_runs
from flwr_asyncdrop.cli.shards import (
    DESCRIPTION,
    Shard,
    agree,
    deal,
    describe,
    shard,
    standing,
)
from flwr_asyncdrop.cli.variants import Variant
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.storage.lock import FolderLock
from tests.cli.test_runs import write

SETTINGS = {"algo": "asyncdrop", "lr": 0.1, "in-flight": 4, "num-rounds": 3}
VARIANTS = [Variant("one", SETTINGS), Variant("other", {**SETTINGS, "lr": 0.2})]
SEEDS = [0, 1]


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


class TestWhatTheOthersLack:
    """Two shards of the run `one` with two seeds; the first one is done."""

    @pytest.fixture
    def dealt(self, tmp_path):
        dealt = deal(runs_of(tmp_path, VARIANTS[:1]), 2, 2)
        write(dealt[0][0], seed=0)
        return dealt

    def test_nothing(self, dealt, tmp_path):
        write(dealt[1][0], seed=1)
        found = standing(dealt, Shard(1, 2), 0, tmp_path)
        assert found.is_complete
        assert found.lines == (
            "shard 1/2: 1 of its 1 run complete",
            f"the comparison is complete: 2 runs in {tmp_path}",
        )

    @pytest.mark.parametrize("lost", ["done.json", "model.safetensors"])
    def test_a_run_that_has_lost_a_file(self, lost, dealt, tmp_path):
        write(dealt[1][0], seed=1)
        (dealt[1][0].folder / lost).unlink()
        found = standing(dealt, Shard(1, 2), 0, tmp_path)
        assert not found.is_complete
        assert found.lines[1:] == (
            "shard 2/2 lacks 1 of 1 run: one seed 1",
            f"the comparison lacks 1 of 2 runs in {tmp_path}",
        )

    def test_a_run_of_another_configuration_is_an_error(self, dealt, tmp_path):
        write(dealt[1][0], seed=1, lr=0.5)
        with pytest.raises(ConfigError, match="another configuration"):
            standing(dealt, Shard(1, 2), 0, tmp_path)

    def test_many_are_counted(self, tmp_path):
        dealt = deal(runs_of(tmp_path, seeds=range(20)), 20, 8)
        lines = standing(dealt, Shard(1, 8), 5, tmp_path).lines
        assert lines[0] == "shard 1/8: 0 of its 5 runs complete"
        assert lines[1].startswith("shard 2/8 lacks 5 of 5 runs: one seed 1, ")
        assert lines[-2:] == (
            "2 more shards lack runs",
            f"the comparison lacks 40 of 40 runs in {tmp_path}",
        )
