"""A connection to a Ray cluster: its address, its room, and the code it is sent."""

import re
import signal
import site
import socket
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.readable import first_line, one_line
from flwr_asyncdrop.simulation.ray.node_facts import UNSENT_FOLDERS, path_of

AUTO = "auto"
"""The address of the cluster that this machine is a node of."""

_ADDRESS = re.compile(r"(?P<host>[^\s/:]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
_SECONDS_TO_CONNECT = 10.0
# Ray's own sums of shares of a processor are as exact.
_ROUNDING = 1e-6
# The script, also as multiprocessing calls it: an actor has another one.
_MAIN = ("__main__", "__mp_main__")
_NOT_SENT = (*(f"**/{name}/" for name in UNSENT_FOLDERS), "**/*.pyc")


def problem_of_address(address: str) -> str:
    """Return what is wrong with the form of an address; "" if nothing is."""
    if address == AUTO or _ADDRESS.fullmatch(address):
        return ""
    return f"{address!r} must be auto, or HOST:PORT of the cluster's head"


def connect(address: str) -> tuple[ModuleType, bool]:
    """Return Ray, connected, and whether this call has connected it.

    A process that is connected already stays so, with its own runtime environment.
    ConfigError if the address is wrong, RunError if no cluster answers there.
    """
    if problem := problem_of_address(address):
        raise ConfigError(f"address={problem}")
    ray = require("ray", "simulation")
    if ray.is_initialized():
        return ray, False
    if found := _ADDRESS.fullmatch(address):
        _check_answers(found["host"].strip("[]"), int(found["port"]))
    paths = sorted({str(path) for path in local_modules().values()})
    code = {"py_modules": paths, "excludes": list(_NOT_SENT)}
    try:
        with _own_sigterm(), warnings.catch_warnings():
            # Ray announces changes to itself.
            warnings.simplefilter("ignore")
            ray.init(
                address=address,
                runtime_env=code,
                log_to_driver=False,
                logging_level="ERROR",
            )
    except Exception as error:  # Ray raises half a dozen types
        raise RunError(
            f"the Ray cluster at {address} could not be joined ({one_line(error)}): "
            "this machine has to be one of its nodes (`ray start`), with the same Ray "
            "and Python"
        ) from error
    return ray, True


def room_of(address: str, num_cpus: float, num_gpus: float) -> int:
    """Return how many actors fit on the cluster at an address."""
    ray, is_mine = connect(address)
    try:
        return most_actors(ray.nodes(), num_cpus, num_gpus)
    finally:
        if is_mine:
            ray.shutdown()


def most_actors(
    nodes: Sequence[Mapping[str, Any]], num_cpus: float, num_gpus: float
) -> int:
    """Return how many actors fit on the nodes that `ray.nodes()` names."""
    total = 0
    for node in nodes:
        if node["Alive"]:
            have = node["Resources"]
            fitting = []
            if num_cpus:
                fitting.append(_times(have.get("CPU", 0.0), num_cpus))
            if num_gpus:
                fitting.append(_on_gpus(have.get("GPU", 0.0), num_gpus))
            total += min(fitting)
    return total


def _on_gpus(have: float, count: float) -> int:
    """Return how many actors fit on GPUs: the share of one lies on a single GPU."""
    return _times(have, count) if count >= 1 else int(have) * _times(1.0, count)


def _times(have: float, count: float) -> int:
    return int(have / count + _ROUNDING)


def local_modules() -> dict[str, Path]:
    """Return what is imported here and is not installed, with the path of each.

    The cluster is sent these; what is installed has to be so on each node.
    """
    installed = [Path(path).resolve() for path in _installed()]
    return {
        name: path
        for name, module in sorted(sys.modules.items())
        if "." not in name and name not in _MAIN
        if (path := path_of(module)) is not None
        if not any(path.is_relative_to(place) for place in installed)
    }


def _installed() -> Iterator[str]:
    paths = sysconfig.get_paths()
    yield from {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    yield from site.getsitepackages()
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()


def _check_answers(host: str, port: int) -> None:
    """Raise RunError if nobody listens, which Ray takes a minute to find out."""
    try:
        with socket.create_connection((host, port), _SECONDS_TO_CONNECT):
            pass
    except (OSError, OverflowError, UnicodeError) as error:  # no port, no name
        raise RunError(
            f"no Ray cluster answers at {host}:{port} ({first_line(error)}): start one "
            "with `ray start --head`, and name its address"
        ) from error


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep what this process does at SIGTERM, which Ray replaces.

    One that comes meanwhile is Ray's SystemExit; then it is handled as it always is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    has_ended = False
    try:
        yield
    except SystemExit:
        has_ended = True
        raise
    finally:
        if before is not None:  # else it is none of Python's
            signal.signal(signal.SIGTERM, before)
            if has_ended:
                signal.raise_signal(signal.SIGTERM)
