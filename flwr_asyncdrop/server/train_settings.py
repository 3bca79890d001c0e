"""What every task carries beside the model."""

from collections.abc import Mapping
from dataclasses import dataclass

from flwr_asyncdrop import wire
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.server.schedule import Schedule

# The learning rate sets how fast the adjustment biases the model: it fades with it.
SCHEDULED = ("lr", "logit-adjustment")


@dataclass(frozen=True)
class TrainSettings:
    """What goes into every task.

    The entries of `config`, the user's train config, named in `SCHEDULED` follow the
    schedule. Flower gives a message up after `ttl` real seconds.
    """

    config: Mapping[str, object]
    schedule: Schedule
    keys: wire.RecordKeys
    ttl: float

    def config_at(self, factor: float) -> dict[str, object]:
        """Return the train config with this factor of the schedule."""
        config = dict(self.config)
        for key in SCHEDULED:
            value = config.get(key)
            if isinstance(value, float | int):
                config[key] = value * factor
        return config


def task_config(
    fleet: Fleet, device: int, server_round: int, *, seed: int
) -> wire.TaskConfig:
    """Return what the server adds to the user's config.

    On a simulated fleet any node may play any device, so it gets the device's number; a
    node of a real fleet knows its own data.
    """
    if fleet.profiles is None:
        return wire.TaskConfig(server_round, seed)
    return wire.TaskConfig(server_round, seed, device, len(fleet))
