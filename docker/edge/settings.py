"""What the entrypoints have in common: reading variables, and Flower's version."""

import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

try:
    FLOWER = tuple(int(part) for part in version("flwr").split(".")[:2])
except PackageNotFoundError:
    sys.exit(f"Flower is not installed for {sys.executable}: pip install flwr")

# Up to 1.34 each of Flower's APIs has a gRPC address of its own; from 1.40 on there is
# one HTTP address.
_SOME_HTTP, _ALL_HTTP = (1, 35), (1, 40)
GRPC = FLOWER < _SOME_HTTP

_LAST_PORT = 65535
_ADDRESS = re.compile(r"[^\s/]+:([0-9]{1,5})")
_LOOPBACK = ("localhost", "127.0.0.1")

# The last is systemd's, for LoadCredential.
_FOLDERS = ("ASYNCDROP_CREDENTIALS", "CREDENTIALS_DIRECTORY")


class InvalidError(ValueError):
    """A variable is missing or wrong; the message names it."""


def check_flower() -> None:
    """Raise InvalidError for a Flower whose APIs are partly gRPC, partly HTTP."""
    if _SOME_HTTP <= FLOWER < _ALL_HTTP:
        raise InvalidError(
            f"flwr {version('flwr')} has some APIs over gRPC and some over HTTP: "
            "install flwr 1.34, or 1.40 or newer, on the server and on all devices"
        )


def required(environment: Mapping[str, str], name: str) -> str:
    """Return an address that must be there."""
    value = environment.get(name, "")
    if not value:
        raise InvalidError(
            f"{name} is not set: it is the SuperLink's address, host:port"
        )
    found = _ADDRESS.fullmatch(value)
    if found is None or not 0 < int(found[1]) <= _LAST_PORT:
        raise InvalidError(
            f"{name}={value!r} must be the SuperLink's address, host:port"
        )
    return value


def flag(environment: Mapping[str, str], name: str) -> bool:
    """Return whether a variable is 1; it may also be 0, empty or absent."""
    value = environment.get(name, "")
    if value not in ("", "0", "1"):
        raise InvalidError(f"{name}={value!r} must be 1 or 0")
    return value == "1"


def whole(environment: Mapping[str, str], name: str, least: int) -> int | None:
    """Return a variable as a whole number, or None if it is not set."""
    text = environment.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise InvalidError(f"{name}={text!r} must be a whole number, {least} or more")
    return int(text)


def positive(environment: Mapping[str, str], name: str) -> float | None:
    """Return a variable as a number above 0, or None if it is not set."""
    text = environment.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InvalidError(f"{name}={text!r} must be a number above 0")
    return value


def port(environment: Mapping[str, str], name: str, default: int) -> int:
    """Return a variable as a port."""
    number = whole(environment, name, 1) or default
    if number > _LAST_PORT:
        raise InvalidError(
            f"{name}={environment[name]!r} must be a port, {_LAST_PORT} at most"
        )
    return number


def credential(environment: Mapping[str, str], name: str) -> str:
    """Return the path of a file that ``make_certificates.sh`` makes."""
    named = (environment.get(variable) for variable in _FOLDERS)
    path = Path(next(filter(None, named), "/run/asyncdrop")) / name
    if not os.access(path, os.R_OK):
        raise InvalidError(
            f"cannot read {path} as user {os.getuid()}: docker/make_certificates.sh "
            "makes it (or set ASYNCDROP_INSECURE=1, on a laptop)"
        )
    if path.is_dir():
        raise InvalidError(
            f"{path} is a folder, which Docker makes where a file is missing: run "
            "docker/make_certificates.sh, then `docker compose up --force-recreate`"
        )
    return str(path)


def health(environment: Mapping[str, str]) -> list[str]:
    """Return where Flower's own health service listens, if anywhere."""
    number = port(environment, "ASYNCDROP_HEALTH_PORT", 0)
    return ["--health-server-address", f"127.0.0.1:{number}"] if number else []


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no proxy is asked for this machine itself.

    gRPC and Flower's HTTP client take all addresses to the proxy that it names.
    """
    others = environment.get("no_proxy") or environment.get("NO_PROXY")
    hosts = ",".join([others, *_LOOPBACK] if others else _LOOPBACK)
    return {**environment, "no_proxy": hosts}


def become(who: str, command: Sequence[str]) -> NoReturn:
    """Print a command and become it, or end with one line."""
    print(f"{who}: {shlex.join(command)}", flush=True)
    try:
        os.execvpe(command[0], command, past_proxies(os.environ))
    except OSError as error:
        path = shutil.which(command[0])
        if path is None:
            sys.exit(f"{who}: {command[0]} is not on the PATH: pip install flwr")
        sys.exit(
            f"{who}: {path} cannot be started: {error.strerror}; its first line names "
            "its Python"
        )
