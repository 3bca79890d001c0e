"""A Flower mod that reports this device's speed, memory and bandwidth."""

import sys
import time
from collections.abc import Callable, Mapping

from flwr.app import Context, Message, MessageType, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.client.memory import training_memory
from flwr_asyncdrop.client.mods import ClientAppCallable, Mod
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import BYTES_PER_MEGABIT

Probe = Callable[[Context], float]
"""Measures how many seconds the local steps of a task with the full model take."""

_MEGABYTE = 1_000_000


class CapacityMod(Mod):
    """Measures each task, so that the server knows how fast this device is now.

    It goes into the ClientApp of a real fleet, ``ClientApp(mods=[CapacityMod()])``. It
    adds a record of six numbers to each reply to a training message, and answers the
    server's probe. What the SuperNode's ``--node-config`` declares counts in place
    of what is measured: ``capacity`` (speed relative to the other devices),
    ``memory-mb`` (for training) and ``bandwidth-mbps`` (in each direction).

    Without it the device's speed is the whole time from dispatch to reply.

    Parameters
    ----------
    probe : callable, optional
        Measures the device when the server probes it, before its first task.
    train_seconds : str
        Metric of the replies with the seconds that the local steps took. Without it
        the whole call counts.
    """

    def __init__(
        self, probe: Probe | None = None, train_seconds: str = "wall-train-seconds"
    ) -> None:
        self._probe = probe
        self._train_seconds = train_seconds

    def __call__(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Answer a probe, or pass a task on and measure it."""
        received, started = _seconds_since_boot(), time.perf_counter()
        if wire.is_probe(message):
            reply, own = Message(RecordDict(), reply_to=message), 0.0
            seconds = own if self._probe is None else self._probe(context)
        else:
            reply = call_next(message, context)
            if reply.has_error() or not _is_real_task(message):
                return reply
            own = time.perf_counter() - started
            seconds = wire.flat_metrics(reply.content).get(self._train_seconds, own)
        if not 0 <= seconds <= wire.LARGEST_REPORTED:  # nobody would read the rest
            seconds = own
        node_config = context.node_config
        memory = declared(node_config, "memory-mb", _MEGABYTE)
        wire.add_report(
            reply,
            wire.DeviceReport(
                train_seconds=seconds,
                received_at=received,
                finished_at=_seconds_since_boot(),
                memory=memory or training_memory(),
                capacity=declared(node_config, "capacity"),
                bandwidth=declared(node_config, "bandwidth-mbps", BYTES_PER_MEGABIT),
            ),
        )
        return reply


def _is_real_task(message: Message) -> bool:
    """Return whether a message asks this device to train, and no simulated one."""
    is_train = wire.kind_of(message) == MessageType.TRAIN
    return is_train and wire.read_task(message).partition_id is None


def declared(node_config: Mapping[str, object], key: str, unit: float = 1.0) -> float:
    """Return a number that the node's owner declares, times its unit, or 0."""
    if key not in node_config:
        return 0.0
    value, most = node_config[key], wire.LARGEST_REPORTED / unit
    # Python takes True for 1.
    if value is True or not isinstance(value, int | float) or not 0 < value <= most:
        raise ConfigError(
            f"the node-config's {key}={value!r} must be a positive number, {most:g} at "
            f"the most: start the SuperNode with --node-config '{key}=1'"
        )
    return value * unit


def _seconds_since_boot() -> float:
    """Return a time that no process of this device sets, and that sleep is part of.

    The time of day jumps, e.g. when a computer without a battery finds the network.
    """
    if sys.platform != "linux":
        return time.monotonic()
    return time.clock_gettime(time.CLOCK_BOOTTIME)
