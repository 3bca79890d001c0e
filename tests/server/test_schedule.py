import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server import schedule


def test_the_rate_steps_down_at_each_milestone():
    decay = schedule.StepDecay((4, 6), gamma=0.1)
    factors = [decay.factor(updates) for updates in range(8)]
    assert factors == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_without_milestones_the_rate_is_constant():
    assert schedule.StepDecay().factor(10**6) == 1.0


@pytest.mark.parametrize(
    ("milestones", "gamma", "says"),
    [((3, 1), 0.1, "ascend"), ((), 0.0, "gamma=0.0"), ((), 1.5, "gamma=1.5")],
)
def test_bad_schedules_are_refused(milestones, gamma, says):
    with pytest.raises(ConfigError, match=says):
        schedule.StepDecay(milestones, gamma)
