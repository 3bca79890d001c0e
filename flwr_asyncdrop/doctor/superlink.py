"""Where `flwr run` starts its local SuperLink, and Flower's variables."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning
from flwr_asyncdrop.doctor.listeners import is_taken, listener

# Flower's own names and defaults; up to 1.34 there is only the second.
_PORTS = {
    "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": "39091",
    "FLWR_LOCAL_CONTROL_API_PORT": "39093",
}
_OFFLINE = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
_LONGEST_COMMAND = 60


def check_ports(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the ports of a local SuperLink are free, or a SuperLink's.

    Parameters
    ----------
    environment : mapping of str to str
        The environment variables.
    """
    for variable, default in _PORTS.items():
        value = environment.get(variable, default)
        if value.isdecimal() and 0 < int(value) < 65536:
            yield _check_port(variable, int(value))
        else:
            mend = f"set {variable} to a number of a free port"
            yield problem("port", f"{variable}={value!r} is no port", mend)


def _check_port(variable: str, port: int) -> Finding:
    name = f"port {port}"
    if not is_taken(port):
        return ok(name, "free")
    process = listener(port)
    if process is None:
        found = "taken by a program of another user"
    else:
        pid, command = process
        if "flower-superlink" in command:
            return warning(
                name,
                f"a SuperLink listens (process {pid})",
                "`flwr run` will use it, with the Flower and the folder that it was "
                f"started with; `kill {pid}` ends it",
            )
        found = f"taken by process {pid}: {command[:_LONGEST_COMMAND]}"
    return problem(name, found, f"set {variable} to the number of a free port")


def check_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check Flower's variables that decide how `flwr run` goes.

    Parameters
    ----------
    environment : mapping of str to str
        The environment variables.
    """
    home = Path(environment.get("FLWR_HOME") or "~/.flwr").expanduser()
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        yield ok("FLWR_HOME", str(home))
    else:
        yield problem(
            "FLWR_HOME",
            f"{there} cannot be written",
            "set FLWR_HOME to a folder that can be",
        )
    if environment.get(_OFFLINE, "").lower() in ("1", "true"):
        yield ok("environment", "`flwr run` uses the one that it is started from")
    else:
        yield warning(
            "environment",
            "`flwr run` first builds one of its own, with PyTorch: gigabytes",
            f"set {_OFFLINE}=1 to run in this one",
        )
    others = sorted(
        name
        for name in environment
        if name.startswith("FLWR_") and name not in (*_PORTS, _OFFLINE, "FLWR_HOME")
    )
    if others:
        shown = ", ".join(f"{name}={environment[name]}" for name in others)
        yield ok("FLWR_*", shown)
