"""Figures are printed when they are there, and what is measured is said before."""

import json
import os
from importlib.metadata import version

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
