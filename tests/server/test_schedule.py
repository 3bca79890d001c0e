import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server import schedule


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
    ],
)
def test_bad_schedules_are_refused(milestones, gamma, says):
    with pytest.raises(ConfigError, match=says):
        schedule.StepDecay(milestones, gamma)


def test_an_unknown_unit_is_refused():
    with pytest.raises(ConfigError, match="unit='epochs' must be 'updates' or"):
        schedule.StepDecay((3,), unit="epochs")
