"""`asyncdrop tune`: the same budget for all, resumable, and what a comparison takes."""

import json
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from flwr_asyncdrop.cli import batch, compare
from flwr_asyncdrop.cli.flags import words_of
from flwr_asyncdrop.cli.halving import Result
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.cli.presets import PRESETS, Preset
from flwr_asyncdrop.cli.race import FinalMetric, Lane, Terms, lanes_of, race
from flwr_asyncdrop.cli.searched import Search, Searched
from flwr_asyncdrop.cli.tuned import (
    Tuned,
    ground_of,
    references,
    with_earlier,
    write_tuned,
)
from flwr_asyncdrop.cli.variants import build_variants
from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.runlog import Curve, Point
from tests.app import own
from tests.cli.busy_pool import BusyPool
from tests.nightly import by_night

SMALL = [
    *("--model=mlp", "--num-rounds=4", "--local-steps=2", "--in-flight=3"),
    *("--devices=6", "--levels=3"),
]
SEARCH = ["--search=lr=0.0001,0.05", "--search=buffer-size=1,2"]


def terms(**changes):
    values = {
        "preset": Preset({"num-rounds": 90}),
        "explicit": {},
        "search": {"lr": [0.1, 0.2], "buffer-size": [2, 4], "alpha": [0.5]},
        "candidates": 9,
        "rungs": 3,
        "eta": 3,
        "seeds": [7, 8],
        "devices": 10,
    }
    values |= changes
    if not isinstance(values["search"], Search):
        values["search"] = Search(values["search"])
    return Terms(**values)


def test_each_algorithm_is_searched_in_the_keys_that_it_has(tmp_path):
    fedbuff, mixing = lanes_of(["fedbuff", "async-fedavg"], terms())
    assert fedbuff.search.keys() == {"lr", "buffer-size"}
    assert mixing.search.keys() == {"lr", "alpha"}
    runs = fedbuff.runs(tmp_path)
    assert [[run.settings["seed"] for run in own] for own in runs] == 4 * [[7, 8]]
    first = runs[0][0]
    assert first.folder == tmp_path / "rung-1" / "fedbuff,lr=0.1,buffer-size=2/seed-7"
    assert (first.settings["num-rounds"], first.config.num_rounds) == (10, 10)
    # Each is tried in a run of its own.
    folders = {run.folder for own in [*runs, *mixing.runs(tmp_path)] for run in own}
    assert len(folders) == 4 * 2 + 2 * 2


def test_a_run_has_the_rounds_of_its_candidate_where_epochs_make_them(tmp_path):
    """All had those of the task's own steps, and twice the steps twice the epochs."""
    preset = PRESETS["mlp-fashion-mnist"]
    rules = terms(preset=preset, search={"local-steps": [50, 100]}, rungs=1, seeds=[7])
    (lane,) = lanes_of(["fedbuff"], rules)
    runs = lane.runs(tmp_path)
    assert [run.config.num_rounds for (run,) in runs] == [41, 21]
    compared = build_variants(["fedbuff"], preset, {}, rules.search.shared)
    assert [each.settings["num-rounds"] for each in compared] == [41, 21]
    lane.settle([[0.3], [0.4]])
    (rung,) = lane.report()["rungs"]
    assert [each["num-rounds"] for each in rung["candidates"]] == [41, 21]


def test_those_ahead_go_on_and_one_wins(tmp_path):
    search = {"lr": [0.1, 0.2, 0.3, 0.4]}
    (lane,) = lanes_of(["fedbuff"], terms(search=search, eta=2, seeds=[7]))

    def settle(**finals):
        runs = lane.runs(tmp_path)
        names = [own[0].name for own in runs]
        assert names == [f"fedbuff,lr={lr[1:]} seed 7" for lr in finals]
        lane.settle([[final] for final in finals.values()])

    settle(**{"_0.1": 0.3, "_0.2": None, "_0.3": 0.5, "_0.4": 0.4})
    settle(**{"_0.3": 0.5, "_0.4": 0.6})
    settle(**{"_0.3": 0.6, "_0.4": 0.7})
    assert lane.winner.values == {"lr": 0.4}
    assert lane.said() == [
        "fedbuff: lr=0.4 (4 tried)",
        "  out, as runs of them failed or diverged: 1 of them",
        "  lr: at the edge of what was searched, a better value may lie beyond",
    ]


def test_a_choice_among_equals_is_said(tmp_path):
    (lane,) = lanes_of(["fedbuff"], terms(search={"lr": [0.1, 0.2, 0.3]}, seeds=[7]))
    lane.runs(tmp_path)
    lane.settle([[0.3], [0.3], [0.3]])
    said = "  all were equally good in a rung, so the first went on: longer runs may"
    assert any(line.startswith(said) for line in lane.said())

    lane.settle([[0.3], [0.4]])
    assert lane.is_by_chance
    (decided,) = lanes_of(["fedbuff"], terms(search={"lr": [0.1, 0.2]}, seeds=[7]))
    decided.settle([[0.3], [0.4]])
    assert not decided.is_by_chance


def test_a_choice_is_said_as_it_is_given(tmp_path):
    searched = {"waits": [True, False]}
    (lane,) = lanes_of(["fedbuff"], terms(search=searched, seeds=[7], rungs=1))
    lane.settle([[0.3], [0.4]])
    assert lane.said() == ["fedbuff: waits=false (2 tried)"]


def test_equals_are_no_choice_if_all_go_on_or_their_whole_time_decides():
    (lane,) = lanes_of(["fedbuff"], terms(search={"lr": [0.1, 0.2]}, seeds=[7]))
    lane.settle([[0.3], [0.3]])
    lane.settle([[0.3], [0.4]])
    lane.settle([[0.3], [0.4]])
    assert not lane.is_by_chance
    lane.results[-1] = [Result({"lr": lr}, (0.4,), (lr,)) for lr in (0.1, 0.2)]
    assert not lane.is_by_chance
    lane.results[-1] = [Result({"lr": lr}, (0.4,)) for lr in (0.1, 0.2)]
    assert lane.is_by_chance


def test_two_algorithms_of_one_name_would_share_folders(tmp_path, monkeypatch):
    for package in ("here", "there"):
        (tmp_path / f"{package}.py").write_text(
            "from flwr_asyncdrop.algorithms.stepped import FedAvg\n"
            "class Mine(FedAvg): pass\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="two algorithms are called Mine"):
        lanes_of(["here:Mine", "there:Mine"], terms(search={"lr": [0.1]}))


class Scored(FinalMetric):
    """Scores of the algorithms' runs, instead of runs."""

    def __init__(self, **scores):
        self.by_name = scores

    def scores(self, runs):
        return [self.by_name[run.config.algo] for run in runs]


def test_of_runs_that_end_alike_the_one_wins_that_was_good_the_sooner(
    tmp_path, monkeypatch
):
    rules = terms(search={"lr": [0.1, 0.2, 0.3]}, rungs=1, seeds=[7], tie=0.005)
    (lane,) = lanes_of(["fedbuff"], rules)
    runs = lane.runs(tmp_path)
    values = {  # after 0, 50 and 150 s
        0.1: (0.1, 0.3, 0.7),
        0.2: (0.1, 0.5, 0.696),
        0.3: (0.1, 0.6, 0.69),
    }

    def curve(run):
        own = zip(values[run.settings["lr"]], (0, 50, 150), strict=True)
        points = tuple(Point(value, time, 0, 0) for value, time in own)
        return Curve(Metric("accuracy"), "server", points)

    monkeypatch.setattr("flwr_asyncdrop.cli.race.curve_of", curve)
    lane.settle([[0.7], [0.696], [0.69]])
    assert lane.winner.values == {"lr": 0.1}
    lane.break_ties(runs)
    assert lane.winner.values == {"lr": 0.2}
    (rung,) = lane.report()["rungs"]
    first, second, third = rung["candidates"]
    assert first["means"] == pytest.approx(((50 * 0.2 + 100 * 0.5) / 150,))
    assert second["means"] == pytest.approx(((50 * 0.3 + 100 * 0.598) / 150,))
    assert "means" not in third


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("loss", -1)])
def test_runs_are_as_good_as_they_end_the_larger_the_better(
    metric, sign, tmp_path, monkeypatch
):
    values = {0.1: (0.9, 0.2, 0.4), 0.2: (0.1, 0.1, 0.5), 0.3: (0.3, 0.3, 0.3)}

    def curve(run):
        lr = run.settings["lr"]
        if lr not in values:
            return None
        points = zip(values[lr], (0.0, 10.0, 20.0), strict=True)
        placed = tuple(Point(value, time, 0, 0) for value, time in points)
        return Curve(Metric(metric), "server", placed, diverged=lr == 0.3)

    monkeypatch.setattr("flwr_asyncdrop.cli.race.curve_of", curve)
    rules = terms(search={"lr": [*values, 0.4]}, rungs=1, seeds=[7], tie=1.0)
    (lane,) = lanes_of(["fedbuff"], rules)
    runs = lane.runs(tmp_path)
    scores = FinalMetric().scores([run for own in runs for run in own])
    assert scores == [sign * 0.4, sign * 0.5, None, None]
    lane.settle([[score] for score in scores])
    assert lane.winner.values == {"lr": 0.2 if sign > 0 else 0.1}
    lane.break_ties(runs)
    # On average over the time they were 0.425 and 0.2.
    assert lane.winner.values == {"lr": 0.1 if sign > 0 else 0.2}


def test_ties_are_broken_among_whole_runs_alone(tmp_path, monkeypatch):
    """In shorter ones the first of equals goes on, which is said."""

    def curve(run):
        value = run.settings["lr"]
        return Curve(Metric("accuracy"), "server", (Point(value, 0.0, 0, 0),))

    monkeypatch.setattr("flwr_asyncdrop.cli.race.curve_of", curve)
    search = {"lr": [0.1, 0.2, 0.3]}
    rules = terms(search=search, rungs=2, tie=0.1, measure=Scored(fedbuff=0.5))
    (lane,) = race(["fedbuff"], rules, tmp_path, lambda number, runs: None)
    short, whole = lane.report()["rungs"]
    assert not any("means" in each for each in short["candidates"])
    assert [each["means"] for each in whole["candidates"]] == [2 * (0.1,), 2 * (0.2,)]
    assert lane.winner.values == {"lr": 0.2}
    assert lane.is_by_chance


def test_an_algorithm_of_which_all_fail_ends_the_race(tmp_path):
    rules = terms(search={"lr": [0.1]}, measure=Scored(fedbuff=None, fedavg=0.5))
    with pytest.raises(RunError, match="every candidate of fedbuff has failed"):
        race(["fedavg", "fedbuff"], rules, tmp_path, lambda number, runs: None)


def test_others_go_on_without_it_if_that_is_asked_for(tmp_path):
    rules = terms(search={"lr": [0.1]}, measure=Scored(fedbuff=None, fedavg=0.5))
    lost, done = [], []

    def lose(lane, error):
        lost.append((lane.label, str(error)))

    def do(number, runs):
        done.append((number, [run.config.algo for run in runs]))

    lanes = race(["fedbuff", "fedavg"], rules, tmp_path, do, lose)
    assert [lane.label for lane in lanes] == ["fedavg"]
    (told,) = lost
    assert told[0] == "fedbuff"
    assert "every candidate of fedbuff has failed" in told[1]
    both = ["fedbuff", "fedbuff", "fedavg", "fedavg"]
    assert done == [(1, both), (2, both[2:]), (3, both[2:])]
    rules = terms(search={"lr": [0.1]}, measure=Scored(fedbuff=None))
    with pytest.raises(RunError, match="every candidate of fedbuff has failed"):
        race(["fedbuff"], rules, tmp_path, do, lose)


def test_what_is_searched_cannot_be_given_too():
    with pytest.raises(ConfigError, match="lr is searched"):
        lanes_of(["fedbuff"], terms(explicit={"lr": 0.1}))
    with pytest.raises(ConfigError, match="lr is searched twice with a value"):
        lanes_of(["fedbuff"], terms(search={"lr": [0.1, 0.2, 0.1]}))
    with pytest.raises(ConfigError, match="alpha means nothing to fedbuff"):
        lanes_of(["fedbuff"], terms(search={"alpha": [0.5]}))


def test_an_algorithm_has_values_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "from flwr_asyncdrop.algorithms.stepped import FedAvg\n\n"
        "class Stepper(FedAvg):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = ["fedbuff", "fedavg", "elsewhere:Stepper"]
    flags = [
        Searched("", "lr", [0.1, 0.2]),
        Searched("", "server-lr", [0.5, 1.0]),
        # By its label, and by the name that --algos has.
        Searched("fedavg", "momentum", [0.5, 0.9]),
        Searched("elsewhere:Stepper", "server-lr", [0.01]),
    ]
    search = Search.read(flags, names)
    lanes = lanes_of(names, terms(search=search))
    assert [lane.search for lane in lanes] == [
        {"lr": [0.1, 0.2], "server-lr": [0.5, 1.0]},
        {"lr": [0.1, 0.2], "server-lr": [0.5, 1.0], "momentum": [0.5, 0.9]},
        {"lr": [0.1, 0.2], "server-lr": [0.01]},
    ]
    assert [len(lane.candidates) for lane in lanes] == [4, 8, 2]
    assert search.fixed().own == {"fedavg": {}, "Stepper": {"server-lr": [0.01]}}


@pytest.mark.parametrize(
    ("flags", "explicit", "says"),
    [
        ([Searched("fedavg", "lr", [0.1])], {}, "fedavg is searched, and is none of"),
        ([Searched("fedbuff", "alpha", [0.1])], {}, "alpha means nothing to fedbuff"),
        ([Searched("fedbuff", "lr", [0.1])], {"lr": 0.1}, "lr is searched: leave"),
        ([Searched("fedbuff", "lr", [0.1, 0.1])], {}, "lr is searched twice with a"),
        (2 * [Searched("fedbuff", "lr", [0.1])], {}, "lr is searched twice: give"),
        (2 * [Searched("", "lr", [0.1])], {}, "lr is searched twice: give"),
    ],
)
def test_values_of_its_own_that_make_no_sense(flags, explicit, says):
    def ask():
        search = Search.read(flags, ["fedbuff"])
        lanes_of(["fedbuff"], terms(search=search, explicit=explicit))

    with pytest.raises(ConfigError, match=says):
        ask()


@pytest.mark.parametrize("command", ["tune", "advise"])
@pytest.mark.parametrize(
    ("searched", "says"),
    [
        ("in-flight=2,20", "in-flight=20 of 6 devices cannot train at once"),
        ("model=mlp,nowhere.to:find", "nowhere"),
    ],
)
def test_a_candidate_that_cannot_be_run_is_refused_before_any_runs(
    command, searched, says, tmp_path, capsys
):
    """20 of 6 devices trained as 6, and could be chosen; others failed one by one."""
    key = searched.partition("=")[0]
    given = [word for word in SMALL if not word.startswith(f"--{key}")]
    words = [*given, "--algos=fedbuff", f"--search={searched}", "--num-rounds=2"]
    assert main([command, *words, f"--out={tmp_path / 'out'}"]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_too_much_for_short_runs_alone_is_refused_with_that_reason(
    tmp_path, capsys
):
    """It named a number of rounds that nobody had given."""
    words = ["tune", *SMALL, "--algos=fedbuff", "--search=buffer-size=2,6"]
    assert main([*words, f"--out={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err.startswith(
        "asyncdrop: in the first runs, which are 1/9 as long as the last: buffer-size=6"
    )
    assert main([*words, "--num-rounds=1", f"--out={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err.startswith("asyncdrop: buffer-size=6 is more than")


def test_what_needs_a_value_may_have_it_of_the_search_alone(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "windowed.py").write_text(
        "from dataclasses import dataclass\n"
        "from flwr_asyncdrop.algorithms.stepped import FedBuff\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Windowed(FedBuff):\n    window: int\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["tune", *SMALL, "--algos=windowed:Windowed", "--search=window=1,2"]
    assert main([*words, "--rungs=1", f"--out={tmp_path / 'out'}"]) == 0
    assert "Windowed: window=" in capsys.readouterr().out


class Kept(own.Kept):
    """Of the name of its parent."""


class TestTuned:
    def test_it_is_read_again(self, tmp_path):
        chosen = {"fedbuff": {"lr": 0.1, "averaging": True}}
        path = write_tuned(tmp_path, {"chosen": chosen, "seeds": [6, 7], "else": []})
        tuned = Tuned.read(path)
        assert tuned.of("fedbuff") == chosen["fedbuff"]
        tuned.check([0, 1], {"num-rounds"})
        with pytest.raises(ConfigError, match="seed 7 has chosen the settings"):
            tuned.check([7, 0], set())
        with pytest.raises(ConfigError, match="lr was tuned: leave --lr out"):
            tuned.check([0], {"lr"})
        with pytest.raises(ConfigError, match="asyncdrop was not tuned"):
            tuned.of("asyncdrop")

    def test_another_class_of_the_same_name_was_not_tuned(self, tmp_path):
        names = ["tests.app.own:Kept", "fedbuff"]
        content = {"chosen": {"Kept": {"lr": 0.1}, "fedbuff": {}}, "seeds": [7]}
        path = write_tuned(tmp_path, {**content, "references": references(names)})
        tuned = Tuned.read(path)
        assert tuned.of("tests.app.own:Kept") == {"lr": 0.1}
        assert tuned.of("fedbuff") == {}
        again = "tests.cli.test_tune:Kept"
        with pytest.raises(ConfigError, match=rf"tests.app.own:Kept, and not {again}"):
            tuned.of(again)
        # Earlier files do not say it.
        assert Tuned.read(write_tuned(tmp_path, content)).of(again) == {"lr": 0.1}

    def test_another_ground_than_that_of_the_comparison_is_named(self, tmp_path):
        """Settings of another model or fleet passed for tuned ones without a word."""
        given = {"model": "cnn", "lr-gamma": 0.5, "trace": "/a/f.csv", "data-dir": "/b"}
        content = {"task": "digits", "devices": 9, "given": given}
        content |= {"chosen": {"fedbuff": {"lr": 0.1}}, "seeds": [7]}
        tuned = Tuned.read(write_tuned(tmp_path, content))
        same = {"lr-gamma": 0.5, "trace": "/c/f.csv", "model": "cnn"}
        assert tuned.differences(ground_of("digits", 9, same)) == []
        others = {"trace": "/c/f.csv", "model": "mlp", "scale": False}
        assert tuned.differences(ground_of("mlp-small", 8, others)) == [
            "task digits, now mlp-small",
            "devices 9, now 8",
            "model cnn, now mlp",
            "lr-gamma 0.5, now not given",
            "scale not given, now false",
        ]

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "{}", '{"format": 1}', "[" * 100_000]
        + [
            json.dumps({"format": "flwr-asyncdrop tuning 1", **rest})
            for rest in (
                {},
                {"chosen": [], "seeds": []},
                {"chosen": {"a": {"lr": []}}, "seeds": []},
                {"chosen": {}, "seeds": ["x"]},
            )
        ],
    )
    def test_anything_else_is_refused_in_a_line(self, tmp_path, text):
        path = tmp_path / "tuned.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"is no result of asyncdrop tune"):
            Tuned.read(path)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(ConfigError, match=r"No such file .*; give the tuned\.json"):
            Tuned.read(tmp_path / "tuned.json")


def test_a_race_is_run_resumed_and_compared(tmp_path, capsys):
    out = tmp_path / "tune"
    command = ["tune", *SMALL, *SEARCH, "--algos=fedbuff,async-fedavg", f"--out={out}"]
    command += ["--rungs=2", "--eta=2", "--seeds=1000", "--jobs=2"]
    assert main(command) == 0
    said = capsys.readouterr().out
    content = json.loads((out / "tuned.json").read_text())
    assert content["chosen"]["async-fedavg"] == {"lr": 0.05}  # 0.0001 learns nothing
    assert content["chosen"]["fedbuff"]["lr"] == 0.05
    found = content["algorithms"]["fedbuff"]["rungs"]
    assert [rung["num-rounds"] for rung in found] == [2, 4]
    assert [len(rung["candidates"]) for rung in found] == [4, 2]
    assert "fedbuff: lr=0.05, buffer-size=" in said
    assert "lr, buffer-size: at the edge" in said
    assert "--tuned" in said
    assert "--model mlp --num-rounds 4" in said
    (command_line,) = re.findall("with other seeds: asyncdrop (.*)", said)
    pasted = Parser(prog="asyncdrop")
    words = shlex.split(command_line)[1:]
    compare.add_arguments(pasted, words)
    assert str(pasted.parse_args(words).out) == f"{out}-compared"

    histories = {path: path.stat().st_mtime_ns for path in out.rglob("history.jsonl")}
    assert len(histories) == 4 + 2 + 2 + 2
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in histories} == histories
    assert json.loads((out / "tuned.json").read_text()) == content

    compared = tmp_path / "compared"
    tuned = f"--tuned={out / 'tuned.json'}"
    command = ["compare", *SMALL, "--algos=fedbuff", tuned, f"--out={compared}"]
    assert main([*command, "--seeds=1000"]) == 2
    capsys.readouterr()
    assert main([*command, "--seeds=0", "--jobs=1", "--lr-gamma=0.5"]) == 0
    said = "was tuned on other ground: lr-gamma not given, now 0.5\n"
    assert said in capsys.readouterr().out
    first, *_ = read_history(compared / "fedbuff" / "seed-0" / "history.jsonl")
    config = first["config"]
    for key, value in content["chosen"]["fedbuff"].items():
        assert config[key] == value


@pytest.mark.parametrize("command", ["tune", "advise"])
def test_what_somebody_else_does_has_not_failed(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(batch, "RunPool", BusyPool)
    words = [command, *SMALL, "--search=lr=0.1,0.2", "--algos=fedbuff,async-fedavg"]
    assert main([*words, f"--out={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert re.search(r"other processes do \d of the runs to choose among", error)
    assert not (tmp_path / "tuned.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["tune", "advise"])
def test_a_full_disk_of_the_output_does_not_end_it(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(batch, "RunPool", BusyPool)
    words = [command, *SMALL, "--search=lr=0.1,0.2", "--algos=fedbuff,async-fedavg"]
    with Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([*words, f"--out={tmp_path}"]) == 1
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    # It came to the end of its first runs, which are somebody else's.
    assert "of the runs to choose among" in capsys.readouterr().err


def test_the_command_that_compares_has_seeds_that_have_not_chosen(tmp_path, capsys):
    command = ["tune", *SMALL, "--search=lr=0.05", "--algos=fedbuff", "--rungs=1"]
    assert main([*command, "--seeds=2-3", f"--out={tmp_path / 'tune'}"]) == 0
    (line,) = re.findall("other seeds: asyncdrop (.*)", capsys.readouterr().out)
    words = shlex.split(line)[1:]
    pasted = Parser(prog="asyncdrop")
    compare.add_arguments(pasted, words)
    assert pasted.parse_args(words).seeds == [4, 5, 6]


def test_words_of_a_command_give_a_value_that_begins_with_a_dash():
    words = words_of({"model": "-x", "lr": -1e-5, "scale": False, "width": 2})
    assert words == ["--model=-x", "--lr=-1e-05", "--no-scale", "--width", "2"]


def test_an_algorithm_that_is_tuned_later_joins_those_before(tmp_path, capsys):
    """The file had the last command's algorithms alone."""
    out = tmp_path / "tune"
    command = ["tune", *SMALL, "--search=lr=0.03,0.05", "--rungs=1", f"--out={out}"]
    assert main([*command, "--algos=fedbuff"]) == 0
    first = json.loads((out / "tuned.json").read_text())
    own = ["--algos=async-fedavg", "--search=async-fedavg:alpha=0.5"]
    assert main([*command, *own]) == 0
    both = json.loads((out / "tuned.json").read_text())
    assert both["chosen"].keys() == {"fedbuff", "async-fedavg"}
    for name in ("chosen", "algorithms"):
        assert both[name]["fedbuff"] == first[name]["fedbuff"]
    assert "terms" not in capsys.readouterr().out
    # With other seeds its choice was not as fair
    assert main([*command, "--algos=async-fedavg", "--seeds=7"]) == 0
    last = json.loads((out / "tuned.json").read_text())
    assert last["chosen"].keys() == {"async-fedavg"}
    assert (
        f"fedbuff was tuned on other terms, and is no longer in {out / 'tuned.json'}"
        in capsys.readouterr().out
    )


def test_an_algorithm_that_is_tuned_on_an_edited_trace_joins_no_others(
    tmp_path, capsys
):
    """They had other devices, of which the trace's name says nothing."""
    out, trace = tmp_path / "tune", tmp_path / "fleet.csv"
    command = ["tune", *SMALL[:4], f"--trace={trace}", "--search=lr=0.05", "--rungs=1"]
    for algo, slowest in (("fedbuff", 1), ("fedavg", 1), ("async-fedavg", 50)):
        trace.write_text(f"seconds_per_step\n1\n1\n{slowest}\n")
        assert main([*command, f"--algos={algo}", f"--out={out}"]) == 0
    chosen = json.loads((out / "tuned.json").read_text())["chosen"]
    assert chosen.keys() == {"async-fedavg"}
    said = capsys.readouterr().out
    for label in ("fedavg", "fedbuff"):
        assert f"{label} was tuned on other terms" in said


def test_where_files_lie_and_what_changes_no_run_are_no_terms(tmp_path):
    """Algorithms that were tuned with another ``data-dir`` were dropped."""

    def content(label, **given):
        given = {key.replace("_", "-"): value for key, value in given.items()}
        found = {"algorithms": {label: {}}, "references": {}, "chosen": {label: {}}}
        return {"seeds": [7], "trace-sha256": "1", "given": given, **found}

    write_tuned(tmp_path, content("fedbuff", lr=0.1, trace="fleet.csv", data_dir="a"))
    elsewhere = {"trace": "/other/fleet.csv", "track": "mlflow"}
    joined, gone = with_earlier(tmp_path, content("fedavg", lr=0.1, **elsewhere))
    assert joined["chosen"].keys() == {"fedbuff", "fedavg"}
    assert gone == []
    _, gone = with_earlier(tmp_path, content("fedavg", lr=0.2, **elsewhere))
    path = tmp_path / "tuned.json"
    assert gone == [f"fedbuff was tuned on other terms, and is no longer in {path}"]


@pytest.mark.parametrize("text", ["", "{}", "[" * 10**5, '{"format": "another"}'])
def test_a_file_of_others_that_a_tuning_replaces_is_said(tmp_path, text):
    content = {"seeds": [7], "given": {}}
    content |= {"algorithms": {}, "references": {}, "chosen": {"fedavg": {}}}
    assert with_earlier(tmp_path, content) == (content, [])
    path = tmp_path / "tuned.json"
    path.write_text(text)
    said = f"{path} could not be read as a tuning's, and is replaced"
    assert with_earlier(tmp_path, content) == (content, [said])


def test_ties_of_a_race_are_in_its_file(tmp_path):
    out = tmp_path / "tune"
    command = ["tune", *SMALL, "--search=lr=0.0001,0.03,0.05", "--algos=fedbuff"]
    assert main([*command, "--rungs=1", "--tie=0.1", f"--out={out}"]) == 0
    content = json.loads((out / "tuned.json").read_text())
    assert content["tie"] == 0.1
    means = {}
    for each in content["algorithms"]["fedbuff"]["rungs"][0]["candidates"]:
        lr = each["values"]["lr"]
        folder = out / "rung-1" / f"fedbuff,lr={lr}" / "seed-1000"
        curve = [
            (event["time"], event["metrics"]["accuracy"])
            for event in read_history(folder / "history.jsonl")
            if event["event"] == "evaluation"
        ]
        times, values = zip(*curve, strict=True)
        assert each["finals"] == [values[-1]]
        if lr > 0.001:
            means[lr] = np.trapezoid(values, times) / times[-1]
            assert each["means"] == pytest.approx([means[lr]])
        else:
            assert "means" not in each
    assert content["chosen"]["fedbuff"]["lr"] == max(means, key=means.get)


def test_a_lane_without_anything_to_search_has_one_candidate(tmp_path):
    lane = Lane("fedavg", frozenset(), terms())
    assert [len(own) for own in lane.runs(tmp_path)] == [2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--max-seconds=50"], "max-seconds"),
        (["--lr-milestones=10s,20s"], "lr-milestones"),
        (["--search=lr-milestones=10s,20s"], "lr-milestones"),
        (["--search=num-rounds=2,4"], "num-rounds"),
        (["--search=max-seconds=10,20", "--rungs=1"], "max-seconds"),
    ],
)
def test_short_runs_that_would_not_be_short_are_refused(words, says, tmp_path, capsys):
    out = tmp_path / "tuned"
    arguments = [*SMALL, "--algos=fedbuff", *SEARCH, *words, f"--out={out}"]
    assert main(["tune", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not out.exists()


@by_night
def test_seconds_are_no_problem_of_whole_runs(tmp_path):
    words = ["--search=lr=0.01", "--max-seconds=50", "--lr-milestones=10s", "--rungs=1"]
    out = tmp_path / "tuned"
    assert main(["tune", *SMALL, "--algos=fedavg", *words, f"--out={out}"]) == 0
