import io
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flwr_asyncdrop.cli.bars import BarDisplay
from flwr_asyncdrop.cli.follow import Followed, Tail
from flwr_asyncdrop.cli.lines import LineDisplay
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.cli.watch import newest, watch
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.storage.lock import FolderLock

CONFIG = {"in-flight": 2, "num-rounds": 3, "max-seconds": 0.0, "dataset": "digits"}
FIRST = {
    "event": "run",
    "schema": 2,
    "seed": 7,
    "devices": 10,
    "full_bytes": 100,
    "algorithm": "asyncdrop",
    "config": CONFIG,
}


def update(number, **fields):
    return {
        "event": "update",
        "update": number,
        "round": 1 + (number - 1) // 2,
        "time": 10.0 * number,
        "device": 0,
        "rank": 0,
        "dispatched_at": 0.0,
        "staleness": 1,
        "version": number,
        "bytes_down": 30,
        "bytes_up": 20,
        "compute": 1.0,
        "in_flight": 1,
        **fields,
    }


def evaluation(number, metrics, source="server"):
    return {
        "event": "evaluation",
        "source": source,
        "round": number,
        "update": 2 * number,
        "time": 20.0 * number,
        "bytes_down": 70 * number,
        "bytes_up": 40 * number,
        "metrics": metrics,
    }


FAILURE = {
    "event": "failure",
    "time": 35.0,
    "device": 3,
    "rank": 1,
    "dispatched_at": 1.0,
    "kind": "dropout",
    "reason": "it was lost",
}
END = {
    "event": "end",
    "updates": 6,
    "time": 60.0,
    "bytes_down": 210,
    "bytes_up": 120,
    "failures": {"dropout": 1},
}
RECORDS = [
    FIRST,
    evaluation(0, {"accuracy": 0.1}),
    update(1),
    update(2),
    evaluation(1, {"accuracy": 0.5}),
    evaluation(1, {"accuracy": 0.9}, "clients"),
    update(3),
    FAILURE,
    update(4),
    update(5),
    update(6),
    evaluation(3, {"accuracy": 0.75}),
    END,
]


def line(record):
    return json.dumps({**record, "wall": {"seconds": 1.0}}) + "\n"


@pytest.fixture
def writing(tmp_path):
    """Return what appends some of the records to the history of a folder."""

    def write(records):
        with (tmp_path / "history.jsonl").open("a") as file:
            file.writelines(map(line, records))

    write.folder = tmp_path
    return write


def test_a_run_is_followed_from_its_first_line_to_its_last(writing):
    followed = Followed(writing.folder)
    assert not followed.look()
    writing(RECORDS[:8])
    assert followed.look()
    run, progress = followed.run, followed.progress
    assert (run.name, run.num_updates, run.max_seconds) == ("asyncdrop seed 7", 6, 0.0)
    assert (progress.updates, progress.time, progress.lost) == (3, 35.0, 1)
    # The server's, though clients evaluated later.
    assert progress.metric == ("accuracy", 0.5)
    assert progress.curve == (0.1, 0.5)
    assert progress.in_flight == (2,)
    assert progress.num_bytes == 110 + 50
    assert not followed.has_ended
    assert not followed.look()
    writing(RECORDS[8:])
    followed.look()
    assert followed.has_ended
    assert followed.progress.updates == 6
    assert followed.progress.num_bytes == 330


@pytest.mark.parametrize("place", ["mine/seed-7", "mine"])
def test_a_run_that_does_not_say_its_algorithm_is_called_as_its_folder(
    place, tmp_path, capsys
):
    bare = {name: FIRST[name] for name in ("event", "schema", "seed", "full_bytes")}
    (tmp_path / place).mkdir(parents=True)
    records = [bare, update(1), {**END, "updates": 1}]
    history = tmp_path / place / "history.jsonl"
    history.write_text("".join(map(line, records)))
    assert main(["watch", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("started  mine seed 7\n")
    assert "algorithm" not in shown


def test_sums_of_what_a_history_leaves_out_count(writing):
    left_out = {
        **dict.fromkeys(("late", "queued", "most_staleness", "staleness"), 0),
        "event": "left-out",
        "updates": 3,
        "round": 2,
        "time": 40.0,
        "bytes_down": 90,
        "bytes_up": 60,
        "ranks": [[0, 3]],
        "failures": {"dropout": 2},
    }
    writing([FIRST, update(1), left_out])
    followed = Followed(writing.folder)
    followed.look()
    progress = followed.progress
    assert (progress.updates, progress.lost, progress.num_bytes) == (4, 2, 200)


def test_a_run_that_resumes_before_what_was_read_is_read_anew(writing):
    writing(RECORDS[:9])
    followed = Followed(writing.folder)
    followed.look()
    path = writing.folder / "history.jsonl"
    kept = path.read_text().splitlines(keepends=True)[:3]
    # It has even more lines than before when we look again.
    other = [update(n, bytes_down=31) for n in range(2, 10)]
    path.write_text("".join([*kept, *map(line, [FAILURE, *other])]))
    followed.look()
    assert followed.progress.updates == 9
    assert followed.progress.curve == (0.1,)


@given(
    st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=12),
            st.integers(0, 40),  # cut off to so many bytes
        ),
        max_size=12,
    )
)
def test_all_whole_lines_are_read_once_whatever_is_written(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("tail") / "file"
    path.touch()
    tail, seen = Tail(path), []
    for step in steps:
        if isinstance(step, int):
            os.truncate(path, min(step, path.stat().st_size))
        else:
            with path.open("ab") as file:
                file.write(step)
        lines = list(tail.read(seen.clear))
        seen += lines
        whole = path.read_bytes()
        assert b"".join(seen) == whole[: whole.rfind(b"\n") + 1]
        assert all(line.count(b"\n") == 1 for line in seen)


def test_a_watched_run_looks_as_if_it_were_done_here(writing):
    left, now = [RECORDS[:4], [], RECORDS[4:9], RECORDS[9:]], 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds
        display._bars.refresh()
        writing(left.pop(0))

    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=100)
    with BarDisplay(console) as display:
        watch(Followed(writing.folder), display, timer=lambda: now, sleep=sleep)
    said = file.getvalue()
    assert "2/6" in said
    assert (
        "complete asyncdrop seed 7 [1/1]: 6/6 updates, t 60 s, accuracy 0.750" in said
    )


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_run_that_replaces_the_watched_one_is_watched(writing, is_terminal):
    other = [{**FIRST, "algorithm": "fedbuff"}, *RECORDS[1:]]

    def sleep(seconds):
        (writing.folder / "history.jsonl").write_text("".join(map(line, other)))

    writing(RECORDS[:4])
    file = io.StringIO()
    kind = BarDisplay if is_terminal else LineDisplay
    with kind(Console(file=file, force_terminal=is_terminal, width=100)) as display:
        assert watch(Followed(writing.folder), display, sleep=sleep)
    assert "complete fedbuff seed 7 [1/1]: 6/6 updates" in file.getvalue()


def test_a_run_that_has_not_begun_is_waited_for(writing):
    (writing.folder / "history.jsonl").touch()
    file = io.StringIO()
    lines = LineDisplay(Console(file=file, width=200))
    watch(Followed(writing.folder), lines, sleep=lambda _: writing(RECORDS))
    first, second, *_ = file.getvalue().splitlines()
    assert first == f"waiting for the first line in {writing.folder}"
    assert second == "started  asyncdrop seed 7"


def test_a_name_with_control_characters_reaches_no_terminal(writing):
    writing([{**FIRST, "algorithm": "\x1b[2Jx"}, evaluation(0, {"\x1b[2Jf": 0.1})])
    followed = Followed(writing.folder)
    followed.look()
    assert "\x1b" not in followed.run.name + followed.progress.metric[0]


def test_a_history_need_not_say_when_the_run_ends(writing):
    own = {k: v for k, v in FIRST.items() if k not in ("algorithm", "config")}
    writing([own, *RECORDS[1:4]])
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=100)
    with BarDisplay(console) as display:

        def sleep(seconds):
            display._bars.refresh()
            _, bar = display._bars.tasks
            assert (bar.total, bar.fields["count"]) == (None, "2")
            writing(RECORDS[4:])

        watch(Followed(writing.folder), display, sleep=sleep)
    name = f"{writing.folder.name} seed 7"
    assert f"complete {name} [1/1]: 6 updates, t 60 s" in file.getvalue()


@pytest.mark.parametrize(
    "config", [{"num-rounds": 3}, {"num-rounds": None, "in-flight": 2}]
)
def test_nor_need_it_say_all_that_its_end_takes(writing, capsys, config):
    config = {**config, "max-seconds": None}
    writing([{**FIRST, "config": config}, *RECORDS[1:]])
    assert main(["watch", str(writing.folder)]) == 0
    assert "complete asyncdrop seed 7 [1/1]: 6 updates" in capsys.readouterr().out


def test_a_run_that_writes_nothing_is_said_to_do_so_once(writing):
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += 30.0
        if now == 240.0:
            writing(RECORDS[2:])

    writing(RECORDS[:2])
    file = io.StringIO()
    lines = LineDisplay(Console(file=file, width=100), timer=lambda: now)
    with FolderLock(writing.folder, ".history.jsonl.lock"):
        watch(Followed(writing.folder), lines, timer=lambda: now, sleep=sleep)
    waiting = "waiting  asyncdrop seed 7: it has written nothing for 1 min\n"
    assert file.getvalue().count(waiting) == 1


def test_a_run_whose_process_was_killed_is_not_waited_for(writing):
    writing(RECORDS[:2])
    holds = (
        "import os, sys; from pathlib import Path\n"
        "from flwr_asyncdrop.storage.lock import FolderLock\n"
        "FolderLock(Path(sys.argv[1]), '.history.jsonl.lock').__enter__()\n"
        "print(flush=True); sys.stdin.read(); os._exit(9)"
    )
    now = 0.0
    with subprocess.Popen(
        [sys.executable, "-c", holds, writing.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        holder.stdout.read(1)

        def sleep(seconds):
            nonlocal now
            now += 40.0
            if now == 200.0:
                writing([update(1)])
                holder.communicate()

        file = io.StringIO()
        lines = LineDisplay(Console(file=file, width=100))
        assert not watch(
            Followed(writing.folder), lines, timer=lambda: now, sleep=sleep
        )
    assert now > 200.0
    _, waiting, failed = file.getvalue().splitlines()
    assert "waiting" in waiting
    assert failed == "FAILED   asyncdrop seed 7 [1/1]: its process was killed"


@pytest.mark.parametrize("lock", [".lock", ".history.jsonl.lock"])
def test_a_run_that_was_interrupted_is_not_waited_for(writing, lock):
    """It was for ever, as was one that was killed after a minute without a line."""
    writing(RECORDS[:2])
    writer = FolderLock(writing.folder, lock)
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += 40.0
        if now == 200.0:
            writer.release()
        assert now < 400.0

    file = io.StringIO()
    lines = LineDisplay(Console(file=file, width=100))
    with writer:
        assert not watch(
            Followed(writing.folder), lines, timer=lambda: now, sleep=sleep
        )
    assert now == 200.0
    _, waiting, failed = file.getvalue().splitlines()
    assert "waiting" in waiting
    said = "it was interrupted, and no process goes on with it"
    assert failed == f"FAILED   asyncdrop seed 7 [1/1]: {said}"


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ("error", "an error ended the run"),
        ("failures", "the run did not do all its rounds: in the end every task failed"),
        ("timeout", "the run did not do all its rounds: no device trained any more"),
    ],
)
def test_a_run_that_has_ended_early_has_failed(writing, capsys, ended, why):
    updates = 6 if ended == "error" else 4
    writing([*RECORDS[:2], {**END, "updates": updates, "ended": ended}])
    assert main(["watch", str(writing.folder)]) == 1
    said = capsys.readouterr().out
    assert f"FAILED   asyncdrop seed 7 [1/1]: {why}" in said
    assert "complete" not in said


def test_a_run_that_its_time_has_ended_is_complete(writing, capsys):
    first = {**FIRST, "config": {**CONFIG, "max-seconds": 60.0}}
    writing([first, *RECORDS[1:5], {**END, "updates": 2}])
    assert main(["watch", str(writing.folder)]) == 0
    assert "complete asyncdrop seed 7" in capsys.readouterr().out


def test_of_many_runs_the_one_that_wrote_last_is_watched(tmp_path):
    for number, name in enumerate(("a", "b/seed-0", "c")):
        (tmp_path / name).mkdir(parents=True)
        path = tmp_path / name / "history.jsonl"
        path.touch()
        os.utime(path, (0, 100 - abs(number - 1)))
    assert newest(tmp_path) == tmp_path / "b/seed-0"
    assert newest(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"there is no history\.jsonl in"):
        newest(tmp_path / "empty")


def test_the_command_shows_what_a_run_came_to(writing, capsys):
    writing(RECORDS)
    assert main(["watch", str(writing.folder)]) == 0
    said = capsys.readouterr().out
    assert "started  asyncdrop seed 7" in said
    assert "complete asyncdrop seed 7 [1/1]: 6/6 updates" in said
    assert "final accuracy  0.75" in said


BAD = [
    "no json\n",
    "{}\n",
    '{"event": "run"}\n',
    "[]\n",
    line({**FIRST, "schema": 9}),
    line({**FIRST, "config": {**CONFIG, "num-rounds": "many"}}),
    line(END),
    line(FIRST) + "\0\0\0 {\n",
    line(FIRST) + line(update(1)) + line(update(1)) + line(END),
    line(FIRST) + line(update(2)) + line(END),
    line(FIRST) + line(FIRST) + line(END),
    line(FIRST) + line(END) + line(FAILURE),
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_history_is_refused_in_a_line(tmp_path, capsys, text):
    (tmp_path / "history.jsonl").write_text(text)
    assert main(["watch", str(tmp_path)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("asyncdrop: ")
    assert "codec" not in said
