"""The argparse types of flags that take several values."""

import argparse
import re

from flwr_asyncdrop.cli.flags import Value, value_of
from flwr_asyncdrop.exceptions import ConfigError

_OWN_FLAG = {"algo": "--algos", "seed": "--seeds", "out-dir": "--out"}


def names(text: str) -> list[str]:
    """Read ``a,b,c``."""
    return [part.strip() for part in text.split(",") if part.strip()]


def seeds(text: str) -> list[int]:
    """Read seeds and ranges of seeds: ``0,1,5`` or ``0-2,5``."""
    found: list[int] = []
    for part in names(text):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{part!r} is neither a seed nor a range of seeds such as 0-2"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"the range {part} is empty")
        found.extend(range(first, last + 1))
    if not found:
        raise argparse.ArgumentTypeError("at least one seed is needed")
    return found


def values(text: str) -> tuple[str, list[Value]]:
    """Read a run-config key and its values: ``drop-rate=0.25,0.5``."""
    key, _, listed = text.partition("=")
    parts = names(listed)
    if not parts:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a key and its values, e.g. drop-rate=0.25,0.5"
        )
    if key in _OWN_FLAG:
        raise argparse.ArgumentTypeError(f"{key} varies by {_OWN_FLAG[key]}")
    try:
        return key, [value_of(key, part) for part in parts]
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
