"""A history that leaves updates out has exact sums of them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reports import write_long_history
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.observers.left_out import LeftOut
from flwr_asyncdrop.report import draw_run, summarise
from flwr_asyncdrop.report.runlog import RunLog
from tests.states import saved_and_read

UPDATES = 3000


def write(folder, every):
    path = folder / f"every-{every}.jsonl"
    write_long_history(path, UPDATES, ranks=8, evaluate_every=500, every=every)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("whole"), 1)


def figures(path):
    summary = vars(summarise(read_history(path)))
    of_the_machine = ("wall_seconds", "updates_per_second", "every")
    return {name: each for name, each in summary.items() if name not in of_the_machine}


@pytest.mark.parametrize("every", [2, 7, 100, 10_000])
def test_every_total_is_that_of_the_whole_history(whole, tmp_path, every):
    path = write(tmp_path, every)
    assert figures(path) == figures(whole)
    log, all_of_it = (RunLog.from_records(read_history(p)) for p in (path, whole))
    assert len(log.updates) == -(-UPDATES // every)
    assert len(log.failures) == -(-len(all_of_it.failures) // every)
    assert log.totals == all_of_it.totals
    assert log.units["groups"] == all_of_it.units["groups"]


def test_sums_stand_before_what_comes_after_them(whole, tmp_path):
    """What was sent by the time of a line is what was sent by then."""
    log, all_of_it = (
        RunLog.from_records(read_history(p)) for p in (write(tmp_path, 7), whole)
    )
    counts = np.cumsum(log.steps.updates)
    for name in ("bytes_down", "bytes_up"):
        expected = np.cumsum(getattr(all_of_it.steps, name))[counts - 1]
        at_the_lines = np.cumsum(getattr(log.steps, name))
        # Sums of failures alone may come before the first update.
        assert (at_the_lines == np.where(counts == 0, 0, expected)).all()
    assert counts[-1] == UPDATES


def test_the_file_is_smaller_by_as_much(whole, tmp_path):
    small = write(tmp_path, 100)
    assert small.stat().st_size < whole.stat().st_size / 20
    first = next(read_history(small))
    assert (first["schema"], first["every"]) == (3, 100)
    draw_run(small, tmp_path / "run.png")
    text = summarise(read_history(small)).text()
    assert "3,000 in 375 rounds" in text
    assert "1 in 100 kept" in " ".join(text.split())


def test_nothing_is_left_out_by_default(whole):
    first, *rest = read_history(whole)
    assert first["schema"] == 2
    assert "every" not in first
    assert not any(line["event"] == "left-out" for line in rest)


def test_a_run_that_was_killed_lacks_less_than_one_line_stands_for(tmp_path):
    path = write(tmp_path, 100)
    lines = path.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"update": 2001,' in line)
    path.write_text("".join(lines[: at + 1]))
    assert summarise(read_history(path)).updates == 2001


def test_it_is_not_resumed_with_another_choice(tmp_path):
    writer = HistoryWriter(tmp_path / "history.jsonl", every=3)
    saved = saved_and_read(writer.state_dict())
    HistoryWriter(tmp_path / "history.jsonl", every=3).load_state_dict(saved)
    with pytest.raises(
        CheckpointError, match="every=3 and is not resumed with every=1"
    ):
        HistoryWriter(tmp_path / "history.jsonl").load_state_dict(saved)


def test_a_state_of_a_version_that_left_nothing_out(tmp_path):
    writer = HistoryWriter(tmp_path / "history.jsonl")
    saved = writer.state_dict()
    del saved["every"], saved["left_out"]
    writer.load_state_dict(saved)
    with pytest.raises(CheckpointError, match="every=1 and is not"):
        HistoryWriter(tmp_path / "history.jsonl", every=2).load_state_dict(saved)


@pytest.mark.parametrize("every", [0, -1, 2.5])
def test_there_is_no_every_zeroth(every, tmp_path):
    with pytest.raises(ConfigError, match=f"every={every} must be at least 1"):
        HistoryWriter(tmp_path / "history.jsonl", every=every)


updates = st.fixed_dictionaries(
    {
        "round": st.integers(1, 9),
        "time": st.floats(0, 100),
        "bytes_down": st.integers(0, 10**18),
        "bytes_up": st.integers(0, 10**18),
        "staleness": st.integers(0, 50),
        "rank": st.integers(0, 5),
    },
    optional={
        "queued": st.integers(1, 9),
        "late": st.just(True),
        "work": st.integers(1, 400).map(lambda n: n / 4),  # sums of it are exact
    },
)
failures = st.fixed_dictionaries(
    {"time": st.floats(0, 100), "kind": st.sampled_from(["late", "no-reply"])}
)


@given(st.lists(updates | failures), st.integers(1, 9))
def test_sums_of_sums_are_the_sums(lines, size):
    once, twice = LeftOut(), LeftOut()

    def add(to, line):
        to.add_failure(line) if "kind" in line else to.add_update(line)

    for line in lines:
        add(once, line)
    for start in range(0, len(lines), size):
        part = LeftOut()
        for line in lines[start : start + size]:
            add(part, line)
        part = LeftOut.from_state(saved_and_read(part.state_dict()))
        twice.add(json.loads(json.dumps(part.line())))
    assert once == twice
    found = [line for line in lines if "kind" not in line]
    assert once.updates == len(found)
    assert once.bytes_up == sum(line["bytes_up"] for line in found)
    assert once.late == sum("late" in line for line in found)
    assert sum(once.ranks.values()) == len(found)
    assert sum(once.work.values()) == sum(line.get("work", 0) for line in found)
    assert sum(once.failures.values()) == len(lines) - len(found)


def test_sums_of_versions_without_local_steps():
    old = LeftOut(updates=3, ranks={0: 3})
    state, line = saved_and_read(old.state_dict()), old.line()
    assert "work" not in line  # nor in those of runs without a policy
    del state["work"]
    again = LeftOut.from_state(state)
    again.add(line)
    assert again == LeftOut(updates=6, ranks={0: 6})
