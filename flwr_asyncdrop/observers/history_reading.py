"""Reading the record of a run; `observers.history` says what its lines hold."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history_lines import Record
from flwr_asyncdrop.paths import AnyPath, as_path


def read_history(path: AnyPath) -> Iterator[Record]:
    """Yield the lines of a history file; DataError for a file of anything else."""
    path = as_path("path", path)
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"line {number} of {path} is not JSON: this is not a history file"
            ) from error
        if not isinstance(record, dict) or "event" not in record:
            raise DataError(f"line {number} of {path} is not a history record")
        yield record


def _whole_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file one by one: long runs have many."""
    try:
        if path.exists() and not path.is_file():  # a pipe, or a device without an end
            raise DataError(f"cannot read the history {path}: it is not a file")
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                # A run that was killed may leave half a line behind.
                if line.endswith("\n"):
                    yield line
    except OSError as error:
        raise DataError(f"cannot read the history {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: this is not a history file") from error


def without_wall(record: Mapping[str, Any]) -> Record:
    """Return a history record without what depends on the machine."""
    return {key: value for key, value in record.items() if key != "wall"}
