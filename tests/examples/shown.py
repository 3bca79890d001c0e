"""Outputs that a README shows, compared with what a test's run has printed.

The updates whose lines a README shows are its author's choice; their text is the run's.
What the virtual clock fixes is compared to the letter: updates, time, devices, bytes,
staleness and speed groups. The last metric may be `TOLERANCE` away, as another
processor rounds otherwise and training amplifies that; its name and form may not. Those
before it are not compared: evaluations run beside the training, and a line has the last
one that is done. Updates per
real second, and the time that is left, are compared in form alone.

``ASYNCDROP_NIGHTLY=1 ASYNCDROP_WRITE_OUTPUTS=1 python -m pytest
tests/examples/test_examples.py -k outputs`` writes outputs that differ.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

WRITE = "ASYNCDROP_WRITE_OUTPUTS" in os.environ
TOLERANCE = 0.1

_FENCE = "```"
_UPDATE = re.compile(r"update +(\d+)/(\d+)")
_METRIC = re.compile(r"(\w+) (\d+\.\d{3})")
_OF_THE_MACHINE = re.compile(
    r"[\d.e+-]+ (updates/s)|\d+ (?:s|min|h)(?: \d+ (?:s|min))? (left)"
)


def blocks(folder: Path, language: str) -> list[str]:
    """Return the fenced blocks of a README in a language; those without one are ''."""
    pieces = (folder / "README.md").read_text(encoding="utf-8").split(_FENCE)[1::2]
    heads = [piece.partition("\n") for piece in pieces]
    return [text for head, _, text in heads if head == language]


def progress_of(folder: Path) -> str:
    """Return the block of a README that has the progress of its command."""
    return next(text for text in blocks(folder, "") if _UPDATE.match(text))


def settle(folder: Path, shown: str, printed: str, *, same: bool) -> None:
    """Write to a README what was printed, if that is asked for; else they are same."""
    if WRITE and not same:
        path = folder / "README.md"
        text = path.read_text(encoding="utf-8")
        old, new = (f"{_FENCE}\n{block}{_FENCE}" for block in (shown, printed))
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
    else:
        assert same, f"the README shows\n{shown}and the run printed\n{printed}"


@contextmanager
def logged_progress() -> Iterator[dict[int, str]]:
    """Collect the progress that runs log, by the number of the update.

    Each is two lines of text. Of several for an update the last one counts, which has
    its evaluation.
    """
    by_update: dict[int, str] = {}
    handler = _Collector(by_update)
    logger = logging.getLogger("flwr.asyncdrop")
    logger.addHandler(handler)
    try:
        yield by_update
    finally:
        logger.removeHandler(handler)


class _Collector(logging.Handler):
    def __init__(self, by_update: dict[int, str]) -> None:
        super().__init__()
        self._by_update = by_update
        self._latest: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if found := _UPDATE.match(line):
            self._latest = int(found[1])
            self._by_update[self._latest] = f"{line}\n"
        elif line.startswith("    ") and self._latest is not None:
            self._by_update[self._latest] += f"{line}\n"
            self._latest = None


def numbers(progress: str) -> list[int]:
    """Return the updates that a block of progress is of."""
    return [int(found[1]) for found in _UPDATE.finditer(progress)]


def printed(shown: str, by_update: Mapping[int, str]) -> str:
    """Return what a run has logged for the updates that are shown."""
    return "".join(by_update[number] for number in numbers(shown))


def before(progress: str, update: int, total: int) -> str:
    """Return the part of a block before an update, as a run of `total` shows it."""
    lines = progress.splitlines(keepends=True)
    pairs = ["".join(lines[place : place + 2]) for place in range(0, len(lines), 2)]
    first = "".join(pair for pair in pairs if numbers(pair)[0] < update)
    return _UPDATE.sub(lambda found: f"update {found[1]}/{total}", first)


def same_progress(one: str, other: str) -> bool:
    """Return whether two blocks of progress differ in nothing that counts."""
    ours, theirs = _fields(one), _fields(other)
    return len(ours) == len(theirs) and all(map(_same_field, ours, theirs))


def same_record(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Return whether two JSON records are the same, but for fractions."""
    return one.keys() == other.keys() and all(
        type(value) is type(other[name])
        and (isinstance(value, float) or value == other[name])
        for name, value in one.items()
    )


def _fields(progress: str) -> list[str]:
    """Return what counts: on the way, the metric is that of any earlier round."""
    fields = []
    for line in progress.splitlines():
        first, *others = (field.rstrip() for field in line.split(" | "))
        if (found := _UPDATE.fullmatch(first)) and found[1] != found[2]:
            others = [field for field in others if not _METRIC.fullmatch(field)]
        fields += [_UPDATE.sub(r"update \1/\2", first), *others]
    return fields


def _same_field(one: str, other: str) -> bool:
    ours, theirs = _METRIC.fullmatch(one), _METRIC.fullmatch(other)
    if ours and theirs:
        near = pytest.approx(float(ours[2]), abs=TOLERANCE) == float(theirs[2])
        return ours[1] == theirs[1] and near
    masked = (_OF_THE_MACHINE.sub(r"\1\2", field) for field in (one, other))
    return next(masked) == next(masked)
