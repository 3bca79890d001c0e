"""The advice on fleets of docs/results.md is what their tables say, on real data.

The tables have other settings of the same algorithms, more of them, and kept histories.
docs/advise.md has the fleet on which it is not.
"""

from statistics import fmean

import pytest

from benchmarks.fair import GROUNDS
from benchmarks.tables.archives import read
from benchmarks.tables.verdicts import goal
from flwr_asyncdrop.report.comparison import compare
from tests.fleets import answer_of, without_pictures
from tests.nightly import nightly

ALGORITHMS = ("fedavg", "fedbuff", "fedbuff-wait", "hetero-asyncdrop", "asyncdrop-plus")
RIGHT = (
    "mlp-small",
    "mlp-links",
    "mlp-iid",
    "mlp-dirichlet-half",
    "mlp-dirichlet",
    "mlp-adam",
)


def table(name):
    """Return the mean seconds of a run to 0.95, by algorithm, as the histories say.

    A run that does not get there counts with its whole time, as in an advice.
    """
    found, whole = {}, GROUNDS[name].seconds
    series, _ = read(name)
    target = goal(series, 0.95)
    for one in compare(series, target).rows:
        if one.label in ALGORITHMS:
            seconds = [point.time for point in one.arrivals.values()]
            missing = len(one.outcomes) - len(seconds)
            found[one.label] = fmean([*seconds, *[whole] * missing])
    return found


@pytest.mark.parametrize("name", [nightly(each, id=each) for each in RIGHT])
def test_what_is_recommended_is_hardly_later_than_the_best_of_the_table(
    name, real_data, tmp_path, monkeypatch
):
    without_pictures(monkeypatch)
    ground = GROUNDS[name]
    words = ["--task", ground.task, "--within", f"{ground.seconds:g}", *ground.flags]
    words += ["--search", f"lr={ground.rates}", "--drop-rate=0.25"]
    words += ["--algos", ",".join(ALGORITHMS), "--buffer-size=4"]
    words += ["--outlier-factor=0", "--data-dir", str(real_data)]
    advice = answer_of(tmp_path, *words).advice
    seconds = table(name)
    assert seconds.keys() == set(ALGORITHMS)
    recommended = advice.recommended.candidate.algorithm
    assert seconds[recommended] <= 1.15 * min(seconds.values()), seconds
