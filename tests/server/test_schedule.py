import numpy as np
import pytest

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server import schedule
from flwr_asyncdrop.server.train_settings import TrainSettings


def test_the_rate_steps_down_at_each_milestone():
    decay = schedule.StepDecay((4, 6), gamma=0.1)
    factors = [decay.factor(updates) for updates in range(8)]
    assert factors == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_milestones_in_seconds_count_no_updates():
    decay = schedule.StepDecay((2.5, 4), gamma=0.1, unit="seconds")
    factors = [decay.factor(99, seconds) for seconds in (0.0, 2.4, 2.5, 3.9, 4.0)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert schedule.StepDecay((4,)).factor(3, 1e9) == 1.0


def test_without_milestones_the_rate_is_constant():
    assert schedule.StepDecay().factor(10**6) == 1.0


@pytest.mark.parametrize(
    ("milestones", "gamma", "says"),
    [
        ((3, 1), 0.1, "ascend"),
        ((float("nan"),), 0.1, "finite"),
        ((), 0.0, "gamma=0.0"),
        ((), 1.5, "gamma=1.5"),
        ((), "half", "gamma='half'"),
        (100, 0.1, "milestones=100 must be"),
        ("100", 0.1, "milestones='100' must be"),
        (("a",), 0.1, "must be"),
    ],
)
def test_bad_schedules_are_refused(milestones, gamma, says):
    with pytest.raises(ConfigError, match=says):
        schedule.StepDecay(milestones, gamma)


def test_milestones_may_be_a_list_or_an_array():
    wanted = schedule.StepDecay((4, 6))
    assert schedule.StepDecay([4, 6]) == schedule.StepDecay(np.array([4, 6])) == wanted


def test_an_unknown_unit_is_refused():
    with pytest.raises(ConfigError, match="unit='epochs' must be 'updates' or"):
        schedule.StepDecay((3,), unit="epochs")


class Own:
    """A schedule as somebody may write one."""

    def __init__(self, factor):
        self.given = factor

    def factor(self, fastest_updates, seconds):
        return self.given


def settings(factor):
    return TrainSettings({"lr": 1.0}, Own(factor), wire.RecordKeys(), 60.0)


@pytest.mark.parametrize("factor", [-0.1, float("nan"), float("inf"), None, "half"])
def test_a_factor_that_is_none_is_refused_before_it_is_sent(factor):
    with pytest.raises(ConfigError, match=r"the factor of Own=.* must be at least 0"):
        settings(factor).factor_at(3, 1.0)


@pytest.mark.parametrize("factor", [0.0, 0.25, np.float32(0.5), 1])
def test_other_factors_are_numbers_of_python(factor):
    assert type(settings(factor).factor_at(3, 1.0)) is float
    assert settings(factor).factor_at(3, 1.0) == factor
