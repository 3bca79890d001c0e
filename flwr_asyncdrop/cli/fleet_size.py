"""How many devices a simulated fleet has, where nobody says it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr_asyncdrop.app.config import Value
from flwr_asyncdrop.cli.flags import DEVICES
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.traces import read_trace


def fleet_size(given: int | None, settings: Iterable[Mapping[str, Value]]) -> int:
    """Return ``--devices``, or else the devices of the trace, or else the usual number.

    `settings` are those of all runs, which have one fleet: traces of different lengths
    raise ConfigError.
    """
    if given is not None:
        return given
    traces = {str(each.get("trace", "")) for each in settings}
    sizes = {_length(trace) if trace else DEVICES for trace in traces}
    if len(sizes) > 1:
        counts = " and ".join(str(size) for size in sorted(sizes))
        raise ConfigError(
            f"the fleets to compare have {counts} devices: give --devices, for all"
        )
    return next(iter(sizes), DEVICES)


def _length(trace: str) -> int:
    # How long a task takes makes no difference to how many lines there are.
    return len(read_trace(Path(trace).expanduser(), local_steps=1))
