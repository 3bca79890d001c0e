"""The workers of Flower's simulation where Python lies in a folder with an odd name.

Flower's simulation runs on Ray, which has a shell start its workers. The path of Python
stands in the shell's command as it is: from a folder with a space in its name no worker
starts. Seen in flwr 1.34 to 1.41, with Ray 2.55.
"""

import shlex
import sys
from collections.abc import Mapping
from typing import Any

VARIABLE = "RAY_RUNTIME_ENV_HOOK"
"""Ray's variable for a function that changes the runtime environment of workers."""

HOOK = f"{__name__}.with_quoted_python"
"""What it has to be, for `with_quoted_python`."""


def needs_quotes(path: str) -> bool:
    """Return whether a shell would read a path as something else."""
    others = "".join(letter for letter in path if letter.isascii())
    return shlex.quote(others) != others


def with_quoted_python(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the runtime environment of Ray's workers, with Python's path in quotes."""
    return {"py_executable": shlex.quote(sys.executable), **(runtime_env or {})}
