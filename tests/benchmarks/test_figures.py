"""Figures are printed when they are there, and what is measured is said before."""

import json
import os
from importlib.metadata import version

import pytest

from benchmarks.figures import Figure, show


def test_each_figure_comes_when_it_is_there_and_a_table_at_the_end(capsys):
    seen = []

    def slow():
        yield Figure("first_ms", 1.23456, 2)
        seen.append(capsys.readouterr())
        yield Figure("second", 3.0, 2)

    figures = show({"fast": lambda: [Figure("zeroth", 0.0)], "slow": slow})
    (before,) = seen
    assert "1/2 fast" in before.err
    assert before.err.splitlines()[-1].endswith("2/2 slow")
    zeroth, first = map(json.loads, before.out.splitlines())
    assert first == {"name": "first_ms", "value": 1.2346}
    after = capsys.readouterr().out
    line, _, heading, *table, _, last = after.splitlines()
    assert json.loads(line)["name"] == "second"
    assert heading.split() == ["figure", "value", "goal"]
    assert [row.split()[0] for row in table] == ["zeroth", "first_ms", "second"]
    assert [row.split()[-1] for row in table[1:]] == ["met", "missed"]
    assert [figure.name for figure in figures] == ["zeroth", "first_ms", "second"]
    assert zeroth["value"] == 0.0
    assert f"{os.cpu_count()} cores, flwr {version('flwr')}, torch 2." in last


def test_one_that_fails_is_named_behind_the_table_of_the_others(capsys):
    """It ended all of them, and the figures that were there had no table."""

    def broken():
        yield Figure("begun", 1.0)
        raise RuntimeError("no such disk")

    measurements = {
        "first": lambda: [Figure("zeroth", 0.0)],
        "broken": broken,
        "last": lambda: [Figure("second", 2.0)],
    }
    with pytest.raises(SystemExit, match=r"1 of 3 failed: broken .*no such disk"):
        show(measurements)
    said = capsys.readouterr()
    assert "Traceback" in said.err
    table = said.out.partition("\nfigure ")[2].splitlines()
    assert [row.split()[0] for row in table[1:4]] == ["zeroth", "begun", "second"]


def test_a_benchmark_that_is_ended_ends_all(capsys):
    def ended():
        raise SystemExit(128 + 15)

    with pytest.raises(SystemExit, match="143"):
        show({"ended": ended, "last": lambda: pytest.fail("it goes on")})
