"""What is the same for every task, and what a device is told beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from flwr_asyncdrop import wire
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.server.schedule import Schedule

# The adjustment biases the model that it brings about so fast, so it fades with the
# learning rate.
SCHEDULED = ("lr", "logit-adjustment")


@dataclass(frozen=True)
class TrainSettings:
    """What goes into every task.

    Attributes
    ----------
    config : mapping of str to config values
        The user's train config; what it has of `SCHEDULED` follows the schedule.
    schedule : Schedule
        The global learning-rate schedule.
    keys : RecordKeys
        Where the records go.
    ttl : float
        Real seconds after which Flower gives a message up at the latest.
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
    """Return what a device is told beside the user's config.

    On a simulated fleet any node may play any device, so it is told which; a node of
    a real fleet knows its own data.
    """
    if fleet.profiles is None:
        return wire.TaskConfig(server_round, seed)
    return wire.TaskConfig(server_round, seed, device, len(fleet))
