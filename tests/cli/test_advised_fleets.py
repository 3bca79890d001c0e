"""`asyncdrop advise` finds what suits a fleet where that is known.

docs/advise.md has the figures of all candidates on these fleets.
"""

import pytest

from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.report.series import read_series
from tests.fleets import FLEETS, SMALL, answer_of, without_pictures
from tests.nightly import by_night, nightly


@pytest.fixture
def answered(tmp_path, monkeypatch):
    without_pictures(monkeypatch)

    def answer(fleet, *flags, **kwargs):
        return answer_of(tmp_path / "out", *SMALL, *FLEETS[fleet], *flags, **kwargs)

    return answer


def standing(answer, name):
    """Return how an algorithm stands beside the best one."""
    standings = answer.advice.standings
    return next(each for each in standings if each.candidate.algorithm == name)


@by_night
def test_where_waiting_costs_nothing_the_synchronous_one_is_not_beaten(answered):
    flags = ["--algos=fedavg,fedbuff", "--lr=0.125", "--search=buffer-size=1,2"]
    answer = answered("one speed", *flags, budget=11)
    assert not standing(answer, "fedavg").is_clearly_worse
    assert answer.advice.recommended.candidate.algorithm == "fedavg"


def test_waiting_for_stragglers_is_clearly_worse(answered):
    flags = ["--algos=fedavg,fedbuff", "--lr=0.125", "--search=buffer-size=2,4"]
    answer = answered("stragglers", *flags, budget=11)
    assert answer.advice.recommended.candidate.algorithm == "fedbuff"
    assert standing(answer, "fedavg").is_clearly_worse


@by_night
def test_the_recipe_does_not_wait_for_stragglers(tmp_path, monkeypatch):
    """The middle of this fleet takes 25 times as long as its fastest device."""
    without_pictures(monkeypatch)
    words = ["compare", *SMALL, *FLEETS["stragglers"], "--algos=asyncdrop-plus"]
    words += ["--lr=0.125", "--num-rounds=1000000", "--max-seconds=270"]
    words += ["--vary=wait-limit=8,0", "--seeds=0,1", f"--out={tmp_path}"]
    assert main(words) == 0
    series = read_series([tmp_path])
    hurries, waits = (
        [curve.final.value for curve in one.curves.values()]
        for one in sorted(series, key=lambda one: "=0" in one.label)
    )
    assert min(hurries) > 0.6
    assert max(waits) < 0.5


@by_night
def test_slow_links_take_compression(answered):
    flags = ["--algos=fedavg", "--lr=0.125", "--search=codec=none,q4"]
    answer = answered("slow links", *flags, "--within=500")
    assert answer.advice.recommended.candidate.values == {"codec": "q4"}


BEST = {
    "one speed": (
        ["--within=75", "--search=lr=0.05,0.125,0.3"],
        "hetero-asyncdrop",
        {"lr": 0.05, "drop-rate": 0.5},
    ),
    # One of two settings of the same algorithm that are best, and near to each other.
    "stragglers": (["--within=270", "--search=lr=0.05,0.125,0.3"], "fedbuff", {}),
    "slow links": (
        [
            *("--within=1500", "--search=lr=0.125,0.3", "--search=codec=none,q4"),
            *("--search=drop-rate=0.5", "--search=buffer-size=2,4"),
        ],
        "fedavg",
        {"lr": 0.125, "codec": "q4"},
    ),
}


@pytest.mark.parametrize("fleet", [nightly(fleet, id=fleet) for fleet in BEST])
def test_of_all_algorithms_the_best_one_is_recommended(answered, fleet):
    flags, algorithm, values = BEST[fleet]
    found = answered(fleet, *flags).advice.recommended.candidate
    assert found.algorithm == algorithm
    assert values.items() <= found.values.items()
