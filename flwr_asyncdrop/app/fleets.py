"""The simulated fleet that a run-config describes."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr_asyncdrop.app.config import DEVICE_KEYS, RunConfig
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.profiles import (
    BYTES_PER_MEGABIT,
    BYTES_PER_MEGABYTE,
    DeviceProfile,
)
from flwr_asyncdrop.fleet.traces import read_trace, trace_fleet
from flwr_asyncdrop.observers.history_lines import TRACE_DIGEST

FLEET_KEYS = frozenset(DEVICE_KEYS) | {"clock", "duration", "trace"}
"""The keys that say what devices there are, and how long they take, which nobody can
choose."""


def trace_digest(config: RunConfig) -> dict[str, str]:
    """Return what tells a trace from another one of its name, if there is a trace."""
    if not config.trace:
        return {}
    try:
        content = Path(config.trace).expanduser().read_bytes()
    except OSError:  # who needs the devices says so
        return {}
    return {TRACE_DIGEST: hashlib.sha256(content).hexdigest()}


def keys_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a run-config among what a checkpoint has."""
    return {key: value for key, value in settings.items() if key != TRACE_DIGEST}


def build_fleet(config: RunConfig) -> Callable[[int], Sequence[DeviceProfile]]:
    """Return what builds the run's fleet from a number of devices, fastest first."""
    if config.trace:
        return partial(trace_fleet, _trace(config))
    return partial(
        speed_levels,
        num_levels=config.levels,
        slowest_over_fastest=config.speed_ratio,
        seconds_per_task=config.step_seconds * config.local_steps,
        bytes_per_second=config.bandwidth_mbps * BYTES_PER_MEGABIT or math.inf,
        jitter=config.jitter,
        dropout=config.dropout,
        availability=config.availability,
        watts=config.watts,
        joules_per_byte=config.joules_per_megabyte / BYTES_PER_MEGABYTE,
        seed=config.seed,
    )


def _trace(config: RunConfig) -> Sequence[DeviceProfile]:
    return read_trace(Path(config.trace).expanduser().absolute(), config.local_steps)
