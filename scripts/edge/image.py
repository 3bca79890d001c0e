"""Reads from a Dockerfile what a container of an image starts with."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Image", "read_image"]


@dataclass
class Image:
    """How a container starts if its compose file does not say otherwise."""

    entrypoint: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def read_image(dockerfile: Path, target: str) -> Image:
    """Return the entrypoint and environment of a target.

    Raises
    ------
    KeyError
        If the Dockerfile has no such target.
    """
    stages: dict[str, Image] = {}
    image = Image()
    for instruction, rest in _instructions(dockerfile.read_text(encoding="utf-8")):
        if instruction == "FROM":
            parent, _, name = re.split(r"\s+", f"{rest} AS ", maxsplit=2)
            before = stages.get(parent, Image())
            image = Image(before.entrypoint, dict(before.environment))
            stages[name.split()[0] if name.split() else parent] = image
        elif instruction == "ENV":
            pairs = (each.partition("=") for each in shlex.split(rest))
            image.environment.update({key: value for key, _, value in pairs})
        elif instruction == "ENTRYPOINT":
            image.entrypoint = tuple(json.loads(rest))
    return stages[target]


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions and their arguments, each on one line."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction:
            yield instruction, rest.strip()
