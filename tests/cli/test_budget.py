"""What a budget allows, by hand."""

import pytest

from flwr_asyncdrop.cli.budget import (
    Cost,
    Plan,
    choose_plan,
    cost_of,
    in_runs,
    in_seconds,
)
from flwr_asyncdrop.cli.equal_time import EqualTime
from flwr_asyncdrop.cli.presets import Preset
from flwr_asyncdrop.cli.question import Question
from flwr_asyncdrop.cli.race import Terms, lanes_of
from flwr_asyncdrop.cli.searched import Search
from flwr_asyncdrop.cli.timing import Timing
from flwr_asyncdrop.exceptions import ConfigError

SEARCH = {"lr": [0.1, 0.2, 0.3], "buffer-size": [1, 2, 4], "momentum": [0.5]}


def asked(search=SEARCH, algos=("fedavg", "fedbuff"), candidates=9):
    measure = EqualTime(900.0, "0.95best")
    preset = Preset({"num-rounds": 90})
    terms = Terms(preset, {}, Search(search), candidates, 0, 2, (1000,), 10, measure)
    return Question("digits", algos, terms, measure, (0, 1, 2, 3, 4))


def test_costs_by_hand():
    # Three and nine settings, at a third of the time; two and three in whole runs.
    assert cost_of(Plan(9, 2, 1), asked()) == Cost(3 + 9 + 2 + 3 + 10, 4 + 5 + 10)
    assert cost_of(Plan(9, 2, 3), asked()).whole == pytest.approx(12 / 9 + 5 / 3 + 10)
    assert cost_of(Plan(1, 0, 1), asked()) == Cost(10, 10)


@pytest.mark.parametrize(
    ("budget", "plan"),
    [
        (None, Plan(9, 2, 1)),
        (19, Plan(9, 2, 1)),
        (18, Plan(9, 2, 3, is_cut=True)),
        (12, Plan(9, 1, 9, is_cut=True)),
        (11, Plan(4, 1, 9, is_cut=True)),
        (10, Plan(1, 0, 1, is_cut=True)),
    ],
)
def test_the_most_thorough_plan_that_it_allows(budget, plan):
    assert choose_plan(asked(), *in_runs(budget)) == plan
    assert bool(plan.said()) == plan.is_cut


def test_too_little_is_refused_with_what_it_takes():
    with pytest.raises(ConfigError, match=r"--budget 9 is too little.* 10 whole runs"):
        choose_plan(asked(), *in_runs(9))


def test_real_time():
    timing = Timing(start=2.0, whole=5.0)
    allows, said = in_seconds(27 * 2 + 19 * 5, timing)
    assert allows(Cost(27, 19))
    assert not allows(Cost(28, 19))
    assert choose_plan(asked(), allows, said) == Plan(9, 2, 1)
    with pytest.raises(ConfigError, match="7 s a run, is too little"):
        choose_plan(asked(), *in_seconds(1, timing))


def test_without_a_search_what_has_one_value_stays():
    terms = Plan(1, 0, 1).applied(asked().terms)
    (lane,) = lanes_of(["fedbuff"], terms)
    assert lane.candidates == [{"momentum": 0.5}]
    assert lane.winner.values == {"momentum": 0.5}


def test_nothing_to_search_takes_no_search():
    plan = choose_plan(asked({"lr": [0.1]}), *in_runs(None))
    assert plan == Plan(1, 0, 1)
    assert plan.said() == ""
