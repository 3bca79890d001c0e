"""What every task carries beside the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr_asyncdrop import wire
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.parameters import at_least
from flwr_asyncdrop.server.schedule import Schedule, StepDecay

_RATE = "lr"
# The learning rate sets how fast the adjustment biases the model: it fades with it.
SCHEDULED = (_RATE, "logit-adjustment")

TrainConfig = Mapping[str, object] | Callable[[int], Mapping[str, object]]
"""A train config, or a function of the round that returns it."""


@dataclass(frozen=True)
class TrainSettings:
    """What goes into every task.

    `config` is the user's train config, or a function of the round that returns it; its
    entries named in `SCHEDULED` follow the schedule. Flower gives a message up after
    `ttl` real seconds.
    """

    config: TrainConfig
    schedule: Schedule
    keys: wire.RecordKeys
    ttl: float

    def factor_at(self, fastest_updates: int, seconds: float) -> float:
        """Return the schedule's factor; ConfigError unless it is a number from 0 on."""
        factor = self.schedule.factor(fastest_updates, seconds)
        at_least(0).check(f"the factor of {type(self.schedule).__name__}", factor)
        return float(factor)

    def config_at(self, factor: float, server_round: int = 1) -> dict[str, object]:
        """Return the train config of a round with this factor of the schedule."""
        given = self.config
        config = dict(given(server_round) if callable(given) else given)
        for key in SCHEDULED:
            value = config.get(key)
            if isinstance(value, float | int):
                config[key] = value * factor
        return config

    def rate_share(self, server_round: int) -> float:
        """Return the user's learning rate of a round over that of the first one.

        1 if there is none, or if it was not positive.
        """
        if not callable(self.config):
            return 1.0
        first, now = (self.config(number).get(_RATE) for number in (1, server_round))
        if not isinstance(first, float | int) or not isinstance(now, float | int):
            return 1.0
        return float(now / first) if first > 0 and now > 0 else 1.0

    def finds_no_rate(self, config: Mapping[str, object]) -> bool:
        """Return whether a schedule was given that has no learning rate to scale."""
        rate = config.get(_RATE)
        return self.schedule != StepDecay() and not isinstance(rate, float | int)


def task_config(
    fleet: Fleet,
    device: int,
    server_round: int,
    *,
    seed: int,
    work: float | None = None,
) -> wire.TaskConfig:
    """Return what the server adds to the user's config.

    On a simulated fleet any node may play any device, so it gets the device's number; a
    node of a real fleet knows its own data.
    """
    if fleet.profiles is None:
        return wire.TaskConfig(server_round, seed, work=work)
    return wire.TaskConfig(server_round, seed, device, len(fleet), work)
