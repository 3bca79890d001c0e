import argparse
import sys
from pathlib import Path

import pytest

from flwr_asyncdrop.app.config import RunConfig, key_table
from flwr_asyncdrop.cli.flags import (
    add_flags,
    algos_from_outside,
    given,
    names,
    searched,
    seeds,
    values,
)
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.cli.searched import Searched
from flwr_asyncdrop.exceptions import ConfigError

OUTSIDE = """
from dataclasses import dataclass

from flwr_asyncdrop.algorithms import AsyncDrop

@dataclass(frozen=True)
class Rolling(AsyncDrop):
    window: int = 3

@dataclass(frozen=True)
class Jobbing(AsyncDrop):
    jobs: int = 3
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "outside_flags.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("outside_flags", None)
    key_table.cache_clear()


def parsed(*arguments, without=(), algos=()):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--jobs")
    add_flags(parser, algos=algos, without=without)
    return given(parser.parse_args(arguments))


def test_every_key_is_a_flag_of_its_type():
    words, expected = [], {}
    for name, key in key_table().items():
        value = next(iter(key.own.values())) if key.own else key.default
        expected[name] = key.kind(value or 0) if key.kind is not str else value
        words.append(f"--{name}" if key.kind is bool else f"--{name}={expected[name]}")
    off = ("augment", "download", "overwrite", "waits")
    expected |= dict.fromkeys(off, True)
    values = parsed(*words)
    assert values == expected
    assert [type(value) for value in values.values()] == [
        key.kind for key in key_table().values()
    ]


def test_a_hyperparameter_can_be_left_out_on_purpose_and_switched_off():
    assert parsed("--drop-rate", "", "--no-group-memory", "--averaging=0") == {
        "drop-rate": "",
        "group-memory": False,
        "averaging": 0.0,
    }


def test_only_what_was_given_is_given():
    assert parsed() == {}
    assert parsed("--drop-rate", "0.25", "--no-download") == {
        "drop-rate": 0.25,
        "download": False,
    }


def test_out_is_short_for_out_dir():
    here = {"out-dir": str(Path("here").absolute())}
    assert parsed("--out", "here") == parsed("--out-dir", "here") == here


@pytest.mark.parametrize("key", ["trace", "data-dir", "out-dir", "resume"])
def test_paths_are_absolute_and_nothing_stays_nothing(key, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parsed(f"--{key}", "~/a b") == {key: str(tmp_path / "a b")}
    assert parsed(f"--{key}", "") == {key: ""}
    with pytest.raises(SystemExit):  # with fleet_size it was a RuntimeError
        parsed(f"--{key}", "~no-such-user/x")


@pytest.mark.parametrize(
    "arguments", [("--lr", "high"), ("--seed", "1"), ("--alph", 1)]
)
def test_a_wrong_type_a_key_left_out_and_an_abbreviation_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        parsed(*map(str, arguments), without=("seed",))
    assert arguments[0] in capsys.readouterr().err


def test_help_shows_what_a_key_means_and_its_default(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--local-steps INT mini-batches per task (default: 50)" in text
    assert "served, in [0, 1); 0 = off (default: 0.0; asyncdrop-plus 0.8)" in text
    assert "in (0, 1] (default: 0.5)" in text


@pytest.mark.usefixtures("outside")
class TestAlgorithmFromOutside:
    ROLLING = "outside_flags:Rolling"

    def test_it_is_found_before_anything_else_is_parsed(self):
        words = ["--window", "5", "--algo", self.ROLLING, "--help"]
        assert algos_from_outside("--algo", words) == [self.ROLLING]
        words = [f"--algos=fedavg,{self.ROLLING}"]
        assert algos_from_outside("--algos", words) == [self.ROLLING]
        for words in ([], ["--algo"], ["--algo=fedavg"], ["--algos", "a:b"]):
            assert algos_from_outside("--algo", words) == []

    def test_its_fields_are_flags(self):
        words = ("--algo", self.ROLLING, "--window=5", "--drop-rate=0.5")
        settings = parsed(*words, algos=[self.ROLLING])
        assert settings == {"algo": self.ROLLING, "window": 5, "drop-rate": 0.5}
        assert RunConfig.parse(settings).algorithm.window == 5
        assert values("window=1,2", [self.ROLLING]) == ("window", [1, 2])

    def test_a_field_that_is_a_flag_of_the_command_is_refused(self):
        with pytest.raises(ConfigError, match=r"Jobbing: .*--jobs"):
            parsed(algos=["outside_flags:Jobbing"])


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("drop-rate=0,0.5", ("drop-rate", [0.0, 0.5])),
        ("local-steps=25", ("local-steps", [25])),
        ("scope=internal,all", ("scope", ["internal", "all"])),
        ("group-memory=true,false", ("group-memory", [True, False])),
    ],
)
def test_a_key_varies_over_values_of_its_type(text, read):
    assert values(text) == read
    assert [type(value) for value in values(text)[1]] == [type(v) for v in read[1]]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("lr=0.1,0.2", Searched("", "lr", [0.1, 0.2])),
        ("fedbuff:lr=0.1", Searched("fedbuff", "lr", [0.1])),
        ("a.b:Its:lr=0.1", Searched("a.b:Its", "lr", [0.1])),
        # What a value has of it names no algorithm.
        ("lr-milestones=a:b", Searched("", "lr-milestones", ["a:b"])),
    ],
)
def test_a_key_is_searched_for_all_or_for_one_algorithm(text, read):
    assert searched(text) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fedbuff:", "must be a key and its values"),
        ("fedbuff:lr", "must be a key and its values"),
        ("fedbuff:=0.1", "has no key ''|''"),
        (":lr=0.1", "':lr=0.1' names no algorithm before the ':'"),
    ],
)
def test_what_cannot_be_searched_is_refused(text, says):
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        searched(text)


def test_names_are_parted_by_commas():
    assert names("fedavg, asyncdrop,") == ["fedavg", "asyncdrop"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", [0]), ("0,1,5", [0, 1, 5]), ("0-2", [0, 1, 2]), ("7,3-4", [7, 3, 4])],
)
def test_seeds_are_numbers_and_ranges(text, numbers):
    assert seeds(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "2-1", "1.5"])
def test_what_is_no_seed_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        seeds(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("drop-rate", "must be a key and its values"),
        ("drop-rate=", "must be a key and its values"),
        ("drop-rat=0.5", "did you mean 'drop-rate'"),
        ("drop-rate=much", r"drop-rate='much' must be a number \(float\)"),
        ("download=1", "download='1' must be true or false"),
        ("algo=asyncdrop", "algo varies by --algos"),
        ("seed=1,2", "seed varies by --seeds"),
        ("overwrite=true,false", "overwrite is for a single run"),
        ("resume=/tmp/run", "resume is for a single run"),
        ("metrics-port=9464,9465", "metrics-port is for a single run"),
    ],
)
def test_what_cannot_vary_is_refused(text, says):
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        values(text)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["comprae"], "did you mean 'compare'?"),
        (["simulate", "--task", "mlp-smal"], "did you mean 'mlp-small'?"),
        (["simulate", "--backend", "rya"], "did you mean 'ray'?"),
    ],
)
def test_a_choice_that_is_not_there_may_be_a_slip(words, meant, capsys):
    assert main(words) == 2
    assert meant in capsys.readouterr().err
