"""Reads histories back."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr_asyncdrop.exceptions import DataError

SCHEMA = 2
"""Version of what the lines hold."""

Record = dict[str, Any]
"""One line of a history."""


def read_history(path: Path) -> Iterator[Record]:
    """Yield the lines of a history file.

    Raises
    ------
    DataError
        If the file is missing, or a line is not one that `HistoryWriter` wrote.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read the history {path}: {error.strerror}") from error
    # A run that was killed may leave half a line behind.
    whole = text[: text.rfind("\n") + 1]
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"line {number} of {path} is not JSON: this is not a history file"
            ) from error
        if not isinstance(record, dict) or "event" not in record:
            raise DataError(f"line {number} of {path} is not a history record")
        yield record


def without_wall(record: Mapping[str, Any]) -> Record:
    """Return a history record without what depends on the machine."""
    return {key: value for key, value in record.items() if key != "wall"}
