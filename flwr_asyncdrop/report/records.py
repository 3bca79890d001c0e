"""Whether the records of a history have what a report reads."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr_asyncdrop.exceptions import DataError

_TASK = ("time", "device", "rank", "dispatched_at")
_SUMS = ("time", "bytes_down", "bytes_up")
_NUMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "run": ("seed", "full_bytes"),
        "update": (*_TASK, "update", "round", "staleness", "bytes_down", "bytes_up"),
        "failure": _TASK,
        "evaluation": (*_SUMS, "update", "round"),
        "end": (*_SUMS, "updates"),
    }
)
_TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"update": ("metrics",), "evaluation": ("metrics",), "end": ("failures",)}
)


def checked(records: Iterable[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a history; DataError for one that lacks what is read."""
    for number, record in enumerate(records, start=1):
        if problem := _problem(record):
            raise DataError(
                f"line {number} of {path} is not of a history that this version reads "
                f"({problem}): do the run again, or leave its folder out"
            )
        yield record


def _problem(record: Mapping[str, Any]) -> str:
    event, wall = record["event"], record.get("wall")
    if not isinstance(event, str):
        return "its event is no name"
    if not (isinstance(wall, dict) and _is_number(wall.get("seconds"))):
        return "it has no wall seconds"
    if event == "run" and not isinstance(record.get("config", {}), dict):
        return "its config is no table"
    if event == "run" and not isinstance(record.get("schema"), int):
        return "it has no schema"
    for name in _NUMBERS.get(event, ()):
        if not _is_number(record.get(name)):
            return f"its {name} is no number"
    for name in _TABLES.get(event, ()):
        if not isinstance(record.get(name), dict):
            return f"its {name} are no table"
    return ""


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < 2**63
