"""`asyncdrop advise`: what it is asked, that it resumes, and what it leaves."""

import json
import time
from types import SimpleNamespace

import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli import timing
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.cli.question import ALGOS
from flwr_asyncdrop.cli.race import lanes_of
from flwr_asyncdrop.cli.runs import is_complete
from flwr_asyncdrop.cli.timing import measured
from flwr_asyncdrop.exceptions import RunError
from tests.fleets import FLEETS, SMALL, answer_of, asked, do, without_pictures

TINY = [*SMALL, *FLEETS["one speed"], "--within=10", "--seeds=0-2"]


@pytest.fixture
def out(tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    return tmp_path / "out"


class TestQuestion:
    def test_what_is_tried_unless_it_is_given(self, tmp_path):
        found = asked(*SMALL, "--lr=0.1", f"--out={tmp_path}")
        assert found.algos == ALGOS
        assert found.seeds == (0, 1, 2, 3, 4)
        assert found.terms.seeds == (1000,)
        assert found.terms.search.shared == {
            "drop-rate": (0.125, 0.25, 0.5),
            "buffer-size": [1, 2, 4],
        }
        assert found.terms.explicit["lr"] == 0.1

    def test_what_is_of_no_use_is_not_tried(self, tmp_path):
        flags = ["--algos=fedavg", "--lr=0.02", "--search=momentum=0.5,0.9"]
        found = asked(*SMALL, *flags, f"--out={tmp_path}")
        assert found.terms.search.shared == {"momentum": [0.5, 0.9]}

    def test_three_learning_rates_around_that_of_the_task(self, tmp_path):
        found = asked(*SMALL, f"--out={tmp_path}")
        assert found.terms.search.shared["lr"] == [0.02, 0.05, 0.125]
        replaced = asked(*SMALL, "--search=lr=0.3", f"--out={tmp_path}")
        assert replaced.terms.search.shared["lr"] == [0.3]

    def test_buffers_are_a_quarter_half_and_all_of_what_is_in_flight(self, tmp_path):
        found = asked("--model=mlp", "--in-flight=9", f"--out={tmp_path}")
        assert found.terms.search.shared["buffer-size"] == [2, 4, 9]

    def test_the_devices_are_those_of_the_trace(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "fleet.csv").write_text("seconds_per_step\n1\n2\n4\n8\n")
        flags = ["--model=mlp", "--trace=fleet.csv", "--in-flight=2", "--out=x"]
        flags += ["--partition=iid"]
        found = asked(*flags)
        assert found.terms.devices == 4
        # Commands that are advised work in any folder.
        assert found.terms.explicit["trace"] == str(tmp_path / "fleet.csv")
        assert asked(*flags, "--devices=8").terms.devices == 8
        assert asked("--model=mlp", "--out=x").terms.devices == 104


REFUSED = {
    "seeds": (["--seeds=0,1"], "has 2 seeds, too few"),
    "seed": (["--seeds=1000-1004"], "seed 1000 chooses the settings"),
    "target": (["--target=1.5"], "target='1.5' must be"),
    "target-text": (["--target=x"], "target='x' must be"),
    "within": (["--within=0"], "must be finite and more than 0"),
    "within-nan": (["--within=nan"], "must be"),
    "within-text": (["--within=x"], "'x' must be a number"),
    "budget": (["--budget=4"], "--budget 4 is too little"),
    "budget-0": (["--budget=0"], "must be in [1, 10000]"),
    "both-budgets": (["--budget=99", "--minutes=5"], "not allowed with"),
    "searched-and-given": (["--lr=0.1", "--search=lr=0.1,0.2"], "lr is searched"),
    "useless": (["--search=alpha=0.5"], "alpha means nothing to fedbuff"),
    "useless-key": (["--alpha=0.5"], "alpha means nothing to fedbuff"),
    "of-the-search": (["--search=lr=x"], "lr='x' must be"),
    "algo": (["--algos=fedbuf"], "did you mean 'fedbuff'?"),
    "buffer": (["--search=buffer-size=1,100000000"], "would never change"),
    "length": (["--search=num-rounds=5,9"], "num-rounds is the same for all"),
    "time": (["--search=max-seconds=5,9"], "max-seconds is the same for all"),
    "twice": (["--search=lr=0.1,0.10"], "lr is searched twice with a value"),
    "in-flight": (["--devices=2"], "cannot train at once"),
    "trace": (["--trace=/nonexistent"], "cannot read the trace"),
    "data": (["--dataset=fashion-mnist", "--data-dir=/none"], "no fashion-mnist in"),
    "clock": (["--clock=wall"], "unknown: '--clock=wall'"),
    "seconds": (["--max-seconds=5"], "unknown: '--max-seconds=5'"),
    "no-out": ([], "required: --out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_before_anything_starts(name, tmp_path, capsys):
    flags, says = REFUSED[name]
    flags = ["--algos=fedbuff", *SMALL, *flags]
    out = [] if name == "no-out" else [f"--out={tmp_path / 'out'}"]
    assert main(["advise", *flags, *out]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert says in shown.err
    assert not (tmp_path / "out").exists()


def test_less_than_a_task_is_no_time(tmp_path, capsys):
    command = ["advise", *TINY, "--algos=fedavg", "--lr=0.05", "--within=0.001"]
    assert main([*command, f"--out={tmp_path / 'out'}", "--jobs=2"]) == 2
    said = "no device has done a task within 0.001 virtual s: give more with --within"
    assert said in capsys.readouterr().err


def test_it_advises_and_resumes(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["advise", *TINY, "--algos=fedavg", "--lr=0.05", f"--out={out}"]
    command += ["--jobs=2", "--minutes=9"]
    assert main(command) == 0
    said = capsys.readouterr().out
    content = json.loads((out / "advice.json").read_text())
    assert content["recommended"] == "fedavg"
    assert content["devices"] == 12
    assert content["candidates"][0]["by-seed"].keys() == {"0", "1", "2"}
    assert RunConfig.parse(content["run-config"]).max_seconds == 10
    assert "Recommended: fedavg (synchronous)" in said
    assert "3 seeds are no evidence" in said
    for line in content["commands"].values():
        assert line in said
    times = {path: path.stat().st_mtime_ns for path in out.rglob("history.jsonl")}
    # One is timed, and three are compared.
    assert len(times) == 4
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert json.loads((out / "advice.json").read_text()) == content


def test_what_an_earlier_search_has_done_is_not_timed(out):
    """A run that was there took no time to start, and a budget of minutes far more."""
    flags = [*TINY, "--algos=fedavg", "--search=lr=0.1,0.2"]
    question = asked(*flags, f"--out={out}")
    lanes = lanes_of(question.algos, question.terms)

    def timed(runs):
        missing = [run for run in runs if not is_complete(run)]
        time.sleep(0.3 * len(missing))  # a process starts
        ran.extend(missing)
        do("timed", missing)

    def seconds_to_start():
        return measured(lanes, question.terms, out, timed).start

    ran = []
    assert seconds_to_start() >= 0.3
    seconds_to_start()
    assert len(ran) == 1
    (out / question.measure.folder(1, 9) / "timing.json").unlink()
    assert seconds_to_start() >= 0.3
    assert len({run.folder for run in ran}) == 2


@pytest.mark.parametrize(("trained", "start"), [(5.0, 2.0), (8.0, 0.0)])
def test_what_a_whole_run_takes_by_hand(out, monkeypatch, trained, start):
    """A ninth of a run took 7 s, of which it trained for some."""
    question = asked(*TINY, "--algos=fedavg", "--lr=0.1", f"--out={out}")
    lanes = lanes_of(question.algos, question.terms)
    folder = SimpleNamespace(log=SimpleNamespace(wall_seconds=trained))
    clock = SimpleNamespace(monotonic=iter([100.0, 107.0]).__next__)
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(timing, "RunFolder", lambda path: folder)
    monkeypatch.setattr(timing, "is_complete", lambda run: True)
    (out / question.measure.folder(1, 9)).mkdir(parents=True)
    for _ in range(2):  # the second time from its file
        found = measured(lanes, question.terms, out, lambda runs: None)
        assert found == timing.Timing(start, 9 * trained)


def test_the_last_choice_is_between_two_at_least(out):
    """A third of the time can make the wrong one look best."""
    flags = ["--algos=fedbuff,fedavg", "--search=lr=0.02,0.05,0.125"]
    answer = answer_of(out, *TINY, *flags, "--search=buffer-size=2")
    for lane in answer.lanes:
        first, last = lane.results
        assert (len(first), len(last)) == (3, 2)
        assert lane.winner.score == max(each.score for each in last)


def test_runs_of_another_length_are_not_taken_for_these(out):
    # Without milestones, only the seconds tell them apart.
    flags = [*SMALL, *FLEETS["one speed"], "--seeds=0-2", "--lr-milestones="]
    flags += ["--algos=fedavg", "--lr=0.1"]
    answer_of(out, *flags, "--within=10")
    longer = answer_of(out, *flags, "--within=20")
    outcomes = longer.advice.best.row.outcomes.values()
    fresh = answer_of(out.with_name("x"), *flags, "--within=20")
    assert list(outcomes) == list(fresh.advice.best.row.outcomes.values())
    assert len(list(out.rglob("history.jsonl"))) == 6


def test_what_was_run_counts_when_it_was_interrupted(out):
    flags = [*TINY, "--algos=fedavg,fedbuff", "--lr=0.1", "--search=buffer-size=1,2"]
    done = []

    def interrupted(what, runs):
        for run in runs:
            if len(done) == 5:
                raise KeyboardInterrupt
            do(what, [run])
            done.append(run.folder)

    with pytest.raises(KeyboardInterrupt):
        answer_of(out, *flags, do=interrupted)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("history.jsonl")}
    assert len(before) == 5
    answer = answer_of(out, *flags)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    whole = answer_of(out.with_name("whole"), *flags)
    assert [line.label for line in whole.lanes] == ["fedavg", "fedbuff"]
    for one, other in zip(answer.advice.standings, whole.advice.standings, strict=True):
        assert one.candidate.values == other.candidate.values
        assert one.row.outcomes == other.row.outcomes


def test_an_algorithm_whose_runs_fail_is_left_out_and_named(out):
    flags = [*TINY, "--algos=fedavg,fedbuff,async-fedavg", "--lr=0.1"]

    def failing(what, runs):
        sound = ["fedavg"] if what == "comparison" else ["fedavg", "async-fedavg"]
        do(what, [run for run in runs if run.config.algo in sound])

    answer = answer_of(out, *flags, do=failing)
    assert answer.advice.recommended.candidate.algorithm == "fedavg"
    notes = "\n".join(answer.notes)
    assert "every candidate of fedbuff has failed" in notes
    assert "async-fedavg is left out, as 3 of its 3 last runs failed" in notes
    with pytest.raises(RunError, match="no algorithm has all of its last runs"):
        answer_of(
            out.with_name("x"), *TINY, "--algos=fedavg", "--lr=0.1", do=lambda *_: None
        )


def test_runs_too_short_to_tell_settings_apart_are_named(out):
    """In a ninth of the time no device has done a task."""
    flags = [*TINY, "--within=30", "--algos=fedavg,fedbuff", "--search=buffer-size=2"]
    answer = answer_of(out, *flags, budget=7)
    assert answer.plan.last == 9
    said = "settings of fedbuff were equally good in a rung of the search, so the first"
    assert said in "\n".join(answer.notes)


def test_slow_links_without_compression_are_named(out):
    slow = [*TINY, "--algos=fedavg", "--lr=0.1", "--bandwidth-mbps=1"]
    assert "compression was not tried" in "\n".join(answer_of(out, *slow).notes)
    tried = answer_of(out.with_name("x"), *slow, "--codec=q8")
    assert "compression" not in "\n".join(tried.notes)
