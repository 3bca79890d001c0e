"""Where `flwr run` starts its local SuperLink, and Flower's variables."""

import errno
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning
from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.flower_internals.ray_address import missing_cluster, remedy
from flwr_asyncdrop.flower_internals.ray_workers import HOOK, VARIABLE, needs_quotes
from flwr_asyncdrop.readable import printable, shown

# Flower's own names and defaults; up to 1.34 there is only the second.
_PORTS = {
    "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": "39091",
    "FLWR_LOCAL_CONTROL_API_PORT": "39093",
}
_OFFLINE = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
_LONGEST_COMMAND = 60
# What Alembic, which makes a SuperLink's database, does not read as part of a path.
_UNREADABLE = re.compile(r"[ ,%]")
# Flower's names of what nobody else should read, e.g. in a log.
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD")


def check_installation(origin: str | None = None) -> Finding:
    """Check that a SuperLink starts from where Flower (1.34 to 1.42) is installed."""
    if origin is None:
        spec = find_spec("flwr")
        origin = spec.origin if spec is not None else None
    if origin is None:
        return problem("SuperLink", "Flower is not installed", "pip install flwr")
    folder = Path(origin).resolve().parent
    if not _UNREADABLE.search(str(folder)):
        return ok("SuperLink", f"starts from {folder}")
    return warning(
        "SuperLink",
        f"`flwr run` fails from {folder} ('no such table: fab'): Alembic does not read "
        "a path with a space, comma or %",
        "put the virtual environment into a folder without any, or in a clone of "
        "flwr-asyncdrop use `make run`, which copies Flower's code",
    )


def check_ray(environment: Mapping[str, str], python: str = sys.executable) -> Finding:
    """Check that Ray, if `flwr run` simulates with it, starts workers from here."""
    if not needs_quotes(python):
        return ok("Ray's workers", f"start from {python}")
    if environment.get(VARIABLE) == HOOK:
        return ok("Ray's workers", f"start from {python}, as {VARIABLE} quotes it")
    return warning(
        "Ray's workers",
        f"do not start from {python} in `flwr run`: Ray does not quote the path",
        "put the virtual environment into a folder with letters and digits in its "
        f"name, or set {VARIABLE}={HOOK}, as `make run` does",
    )


def check_ray_cluster(environment: Mapping[str, str]) -> Finding:
    """Check that the cluster answers, if any, that Ray joins in `flwr run`."""
    address, source = missing_cluster(environment)
    if not address:
        return ok("Ray's address", "Ray finds a cluster, or starts one")
    return warning(
        "Ray's address",
        f"nobody answers at {shown(address)}, which {printable(source)} names: `flwr "
        "run` waits for it for minutes",
        printable(remedy(source)),
    )


def check_ports(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the ports of a local SuperLink are free, or a SuperLink's."""
    seen: dict[int, str] = {}
    for variable, default in _PORTS.items():
        value = environment.get(variable, default)
        fix = f"set {variable} to the number of a free port"
        if not (value.isdecimal() and len(value) < 10 and 0 < int(value) < 65536):
            yield problem("port", f"{variable}={shown(value)} is no port", fix)
        elif (port := int(value)) in seen:
            yield problem(f"port {port}", f"{seen[port]} names it, too", fix)
        else:
            seen[port] = variable
            yield _check_port(port, fix)


def _check_port(port: int, fix: str) -> Finding:
    name = f"port {port}"
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except PermissionError as error:
        found = f"this user may not listen there ({error.strerror})"
        return problem(name, found, f"{fix}, from 1024 on")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            found = f"nobody can listen on 127.0.0.1 ({error.strerror})"
            return problem(name, found, "give this machine its loopback interface")
    else:
        return ok(name, "free")
    process = listener(port)
    if process is None:
        return problem(name, "taken by a program that this user cannot see", fix)
    pid, command = process
    if "flower-superlink" not in command:
        found = f"taken by process {pid}: {printable(command, _LONGEST_COMMAND)}"
        return problem(name, found, fix)
    return warning(
        name,
        f"a SuperLink listens (process {pid})",
        "`flwr run` will use it, with the Flower and the folder that it was started "
        f"with; `kill {pid}` ends it",
    )


def listener(port: int) -> tuple[int, str] | None:
    """Return the process that listens on a port and its command line, if they show."""
    try:
        psutil = require("psutil", "doctor")
    except MissingExtraError:
        return None
    try:
        for each in psutil.net_connections("tcp"):
            listens = each.status == psutil.CONN_LISTEN and each.laddr.port == port
            if listens and each.pid is not None:
                return each.pid, " ".join(psutil.Process(each.pid).cmdline())
    except psutil.Error:
        pass
    return None


def check_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check Flower's variables that decide how `flwr run` goes."""
    given = environment.get("FLWR_HOME")  # in which Flower does not expand ~
    home = Path(given).absolute() if given else Path("~/.flwr").expanduser()
    there = next(each for each in (home, *home.parents) if os.path.lexists(each))
    if there.is_dir() and os.access(there, os.W_OK):
        yield ok("FLWR_HOME", printable(str(home)))
    else:
        yield problem(
            "FLWR_HOME",
            f"{printable(str(there))} cannot be written",
            "set FLWR_HOME to a folder that can be",
        )
    if environment.get(_OFFLINE) == "1":
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
        values = [
            f"{name}={'***' if _SECRET.search(name) else printable(environment[name])}"
            for name in others
        ]
        yield ok("FLWR_*", ", ".join(values))
