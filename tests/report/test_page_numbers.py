"""The numbers of the page's script are those of the report; it takes Node."""

import json
import shutil
import subprocess
from math import fsum
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from flwr_asyncdrop import report
from flwr_asyncdrop.readable import Notation, three_digits
from flwr_asyncdrop.report.intervals import FEWEST, MOST_ALL, Interval, interval

NODE = shutil.which("node")
SCRIPT = Path(report.__file__).parent / "page_files" / "numbers.js"
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


def computed(expression, values):
    """Return what an expression of the script is for each `value`."""
    metric = {"share": True, "falls": False}
    data = {"fewest": FEWEST, "mostAll": MOST_ALL, "metric": metric}
    script = (
        f"const data = {json.dumps(data)};\n{SCRIPT.read_text()}\n"
        f"const values = {json.dumps(values)};\n"
        f"console.log(JSON.stringify(values.map((value) => {expression})));"
    )
    command = [NODE, "--input-type=commonjs", "-"]
    done = subprocess.run(
        command, input=script, capture_output=True, check=True, text=True, timeout=600
    )
    return json.loads(done.stdout)


def test_a_target_in_per_cent_is_the_share_of_so_many_samples():
    texts = [f"{samples / 100:g}" for samples in range(1, 10_001)]
    shares = [samples / 10_000 for samples in range(1, 10_001)]
    assert computed("typed(value)", texts) == shares
    assert computed("typed(value)", ["", "1e1", "50.0891364902507"]) == [
        None,  # NaN
        0.1,
        0.500891364902507,
    ]


def test_sums_are_exact():
    generator = np.random.default_rng(0)
    drawn = [generator.lognormal(3, 2, n).tolist() for n in range(1, 200)]
    values = [[], [0.1] * 10, [-0.1] * 10, [1e16, 1.0, -1e16], *drawn]
    assert computed("sum(value)", values) == list(map(fsum, values))


def test_three_digits():
    drawn = np.random.default_rng(0).lognormal(0, 6, 500).tolist()
    ties = [0.125, 1.125, 1.375, 0.0625, 99.9375, 100.5, 101.5, 1234.5]
    edges = [0.0, 9.994, 9.996, 99.94, 99.95, 99.96, 1e-4, 9.996e-5, 1e-12, 1e6]
    values = [*drawn, *ties, *edges]
    assert computed("threeDigits(value)", values) == list(map(three_digits, values))


def test_four_digits():
    drawn = np.random.default_rng(2).lognormal(0, 6, 500)
    edges = [0.0, 12_345.6, 9_999.4, 9_999.6, 9_999_999.6, 1e7, 1e-4, 9.99996e-5, 0.5]
    values = [*drawn.tolist(), *(-drawn).tolist(), *edges, 2.5, 0.12345, 1e33, 120.0]
    assert computed("fourDigits(value)", values) == [
        Notation.of([value]).text(value) for value in values
    ]


def test_intervals_and_which_are_clear():
    generator = np.random.default_rng(1)
    seeds = [generator.normal(0.02, 0.03, n).tolist() for n in (4, 5, 6, 7, 8)]
    # In right answers the lower bound is 0; in shares of 4,000 it is rounded.
    own = [2003, 1999, 2001, 1998, 2001]
    base = [2001, 1998, 1999, 1996, 2002]
    rounded = [a / 4000 - b / 4000 for a, b in zip(own, base, strict=True)]
    seeds += [rounded, [-each for each in rounded], 5 * [0.0], 5 * [-2.0]]
    bounds = computed("interval(value, mean)", seeds)
    expected = [interval(each, fmean) for each in seeds]
    for each, found in zip(expected, bounds, strict=True):
        own = [found.get(name) for name in ("value", "low", "high")]
        assert own == pytest.approx([each.value, each.low, each.high], abs=1e-12)
        assert Interval(**found).is_clear == each.is_clear
    clear = computed("isClear(interval(value, mean))", seeds)
    assert clear == [each.is_clear for each in expected]
    assert clear[5:] == [False, False, False, True]


def test_what_is_clear_is_so_beside_the_rounding_of_the_wider_bound():
    bounds = [[0.1, 0.2], [-0.2, -0.1], [-0.1, 0.1], [0.0, 0.1], [1e-17, 0.1]]
    found = computed("isClear({ low: value[0], high: value[1] })", bounds)
    assert found == [Interval(0.0, *each).is_clear for each in bounds]
