"""`asyncdrop advise` finds what suits a fleet where that is known.

docs/advise.md has the figures of all candidates on these fleets.
"""

import pytest

from tests.fleets import FLEETS, SMALL, answer_of, without_pictures
from tests.nightly import nightly


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
