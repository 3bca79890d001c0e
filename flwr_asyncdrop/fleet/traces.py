"""A fleet read from a file: one line of a CSV for each device.

=======================  ==============================================================
column                   meaning; an empty cell, or no such column, gives the default
=======================  ==============================================================
``seconds_per_step``     virtual seconds of one training step of the full model; needed
``down_mbps``            megabits per second to the device; infinite by default
``up_mbps``              megabits per second from the device; infinite by default
``latency``              seconds of a message on its way beside its bytes; 0
``jitter``               sigma of the log-normal factor on a task's duration; 0
``dropout``              probability that a task is lost, in ``[0, 1)``; 0
``period``               seconds after which ``available`` repeats
``available``            when the device is there within the period, e.g.
                         ``0-25200 79200-86400`` for the night; always by default
``watts``                watts while it computes; 0, which is not counted
``joules_per_megabyte``  joules of its radio for 10^6 bytes, each way; 0
=======================  ==============================================================

The first line names the columns, in any order; lines that begin with ``#`` are
comments. `DeviceProfile` defines latency, jitter and dropout in full. A column of
energy has no empty cells: a sum over some devices is not the fleet's.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.profiles import (
    BYTES_PER_MEGABIT,
    BYTES_PER_MEGABYTE,
    DeviceProfile,
)
from flwr_asyncdrop.parameters import read_number, whole_from
from flwr_asyncdrop.paths import AnyPath, as_path

_AS_THEY_ARE = ("latency", "jitter", "dropout")
_SPEEDS = ("seconds_per_step", "down_mbps", "up_mbps")
_ENERGY = ("watts", "joules_per_megabyte")
_MOST_BYTES, _MOST_DEVICES = 100_000_000, 1_000_000
_LEAST, _MOST = 1e-9, 1e9  # of speeds and periods; beyond, times are no floats
_SHOWN = 40  # characters of a cell that is wrong
_COLUMNS = (*_SPEEDS, *_AS_THEY_ARE, "period", "available", *_ENERGY)


def read_trace(path: AnyPath, local_steps: int) -> list[DeviceProfile]:
    """Read the devices of a trace file, in its order; at least one.

    `local_steps` are the training steps of a task, 1 or more. DataError, with the
    line's number, if the file cannot be read or a line is wrong.
    """
    local_steps = whole_from(1).check("local_steps", local_steps)
    path = as_path("path", path)
    lines = re.split(r"\r\n|\r|\n", _text(path))
    devices: list[DeviceProfile] = []
    header: list[str] = []
    for number, line in _rows(lines):
        try:
            cells = _cells(line)
            if header:
                devices.append(_device(_by_column(header, cells), local_steps))
            else:
                header = _checked(cells)
        except (ValueError, csv.Error) as error:
            raise DataError(f"line {number} of the trace {path}: {error}") from error
        if len(devices) > _MOST_DEVICES:
            raise DataError(f"the trace {path} has more than {_MOST_DEVICES:,} devices")
    if not devices:
        raise DataError(f"the trace {path} has no devices: one line for each, please")
    return devices


def trace_fleet(
    devices: Sequence[DeviceProfile], num_devices: int
) -> Sequence[DeviceProfile]:
    """Return a fleet of any size of the devices of a trace, fastest first.

    The first `num_devices` are taken; a shorter trace is repeated. A partition by speed
    level expects this order. ConfigError if there are no `devices`.
    """
    if not devices:
        raise ConfigError("devices=[] is no fleet: list at least one DeviceProfile")
    taken = (devices[index % len(devices)] for index in range(num_devices))
    return sorted(taken, key=lambda device: device.seconds_per_task)


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():  # a pipe, or a device without an end
            raise DataError(f"cannot read the trace {path}: it is not a file")
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise DataError(
                f"the trace {path} has {size:,} bytes, more than {_MOST_BYTES:,}: "
                "it is not a fleet"
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"the trace {path} is not a text file in UTF-8") from error


def _rows(lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _cells(line: str) -> list[str]:
    (cells,) = csv.reader([line], strict=True)
    return [cell.strip() for cell in cells]


def _checked(header: list[str]) -> list[str]:
    for name in header:
        if name not in _COLUMNS:
            known = ", ".join(_COLUMNS)
            raise ValueError(f"no column {name[:_SHOWN]!r}: there are {known}")
        if header.count(name) > 1:
            raise ValueError(f"the column {name!r} is there twice")
    if "seconds_per_step" not in header:
        raise ValueError("a column 'seconds_per_step' is needed")
    return header


def _by_column(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells under {len(header)} columns")
    found = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
    for name in _ENERGY:
        if name in header and name not in found:
            raise ValueError(f"{name} is empty: write 0 for a device without")
    return found


def _device(cells: Mapping[str, str], local_steps: int) -> DeviceProfile:
    if "seconds_per_step" not in cells:
        raise ValueError("seconds_per_step is empty")
    if ("period" in cells) != ("available" in cells):
        raise ValueError("period and available go together")
    return DeviceProfile(
        _positive(cells, "seconds_per_step") * local_steps,
        _positive(cells, "down_mbps", default="inf") * BYTES_PER_MEGABIT,
        _positive(cells, "up_mbps", default="inf") * BYTES_PER_MEGABIT,
        **{name: _bounded(name, cells[name]) for name in _AS_THEY_ARE if name in cells},
        availability=_availability(cells) if "available" in cells else None,
        watts=_not_negative(cells, "watts"),
        joules_per_byte=_not_negative(cells, "joules_per_megabyte")
        / BYTES_PER_MEGABYTE,
    )


def _availability(cells: Mapping[str, str]) -> Availability:
    intervals = []
    for text in cells["available"].split():
        start, dash, end = text.partition("-")
        if not dash:
            raise ValueError(
                f"available: {text[:_SHOWN]!r} is no interval: write START-END, e.g. "
                "0-25200, and a space to the next"
            )
        intervals.append((_number("available", start), _number("available", end)))
    return Availability(_positive(cells, "period"), tuple(intervals))


def _positive(cells: Mapping[str, str], name: str, default: str = "") -> float:
    text = cells.get(name, default)
    value = _number(name, text)
    if not (_LEAST <= value <= _MOST or text == default == "inf"):
        raise ValueError(f"{name}={value!r} must be in [{_LEAST:g}, {_MOST:g}]")
    return value


def _bounded(name: str, text: str) -> float:
    value = _number(name, text)
    if not value <= _MOST:
        raise ValueError(f"{name}={value!r} must be at most {_MOST:g}")
    return value


def _not_negative(cells: Mapping[str, str], name: str) -> float:
    value = _number(name, cells.get(name, "0"))
    if not 0 <= value <= _MOST:
        raise ValueError(f"{name}={value!r} must be in [0, {_MOST:g}]")
    return value


def _number(name: str, text: str) -> float:
    try:
        return read_number(text)
    except ValueError:
        raise ValueError(f"{name}: {text[:_SHOWN]!r} is not a number") from None
