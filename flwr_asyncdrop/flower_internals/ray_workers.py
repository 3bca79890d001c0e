"""The workers of Flower's simulation: those that cannot start, and those that died.

They do not start where Python lies in a folder with an odd name: Ray has a shell start
them, and the path of Python stands in the shell's command as it is. From a folder with
a space in its name no worker starts.

A worker that has died is given tasks all the same: ``BasicActorPool`` takes it back
after an error like any other. The reply is an error with the name of Ray's exception.

Seen in flwr 1.34 to 1.42 with Ray 2.55: the second one in 1.41 alone, whose code for
it is that of 1.34 and 1.42.
"""

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Ray imports this for the hook
    from flwr.app import Message
    from flwr.serverapp import Grid

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


# What Ray raises of a task whose worker or machine is gone.
_DEATHS = (
    "ActorDiedError",
    "ActorUnavailableError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "RayActorError",
    "WorkerCrashedError",
)
_STARTS = tuple(f"<class 'ray.exceptions.{name}'>" for name in _DEATHS)
_UNKNOWN = 0  # Flower's code of an error that is no ClientApp's


def death_of_worker(message: "Message") -> str | None:
    """Return what Ray says of the worker that died in place of replying; else None."""
    if not message.has_error() or message.error.code != _UNKNOWN:
        return None
    reason = message.error.reason or ""
    return reason if reason.startswith(_STARTS) else None


def has_ray_workers(grid: "Grid") -> bool:
    """Return whether a grid is that of Flower's simulation, which uses Ray.

    So it is with one that says so, by an attribute of this name.
    """
    kind = type(grid)
    is_flowers = kind.__module__.startswith("flwr.") and kind.__name__ == "InMemoryGrid"
    return bool(getattr(grid, "has_ray_workers", is_flowers))
