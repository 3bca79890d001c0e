"""Results that are lines of a file, to which a benchmark that was killed adds more."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["add_result", "read_results"]


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file, none if there is no such file.

    Half a last line, of a process that was killed, is taken off the file: its run is
    done again. Any other line that is no result ends the process with one line.
    """
    if not path.exists():
        return []
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:
        whole = b"".join(line + b"\n" for line in lines)
        try:
            json.loads(rest)
        except ValueError:
            path.write_bytes(whole)
        else:  # somebody has edited the file
            lines.append(rest)
            path.write_bytes(whole + rest + b"\n")
    results = []
    for number, line in enumerate(lines, 1):
        try:
            results.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise SystemExit(
                f"line {number} of {path} is no result: delete the line, and its run "
                "is done again"
            ) from error
    return results


def add_result(path: Path, result: Mapping[str, object]) -> None:
    """Add a result to a file of them."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(result)}\n")
