"""The Ray cluster that Flower's simulation joins, instead of one of its own.

Flower says no address, so Ray takes that of ``RAY_ADDRESS``, or of a file that ``ray
start`` has written. If the cluster ends by SIGKILL, as in a job of Slurm, the file
stays, and then Ray waits for minutes for who is not there. Until it gives up, the run
waits for replies. Seen in flwr 1.34 to 1.42 with Ray 2.55: in the code of 1.34, and
happening in 1.33 and 1.42.
"""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

ADDRESS = "RAY_ADDRESS"
_PATIENCE = 2.0


def missing_cluster(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the address of the cluster that Ray joins, and where it is from.

    They are "" if Ray starts one of its own, or somebody answers at the address.
    """
    address, source = environment.get(ADDRESS, ""), ADDRESS
    if not address:
        file = _folder(environment) / "ray" / "ray_current_cluster"
        address, source = _content(file), str(file)
    host, _, port = address.rpartition(":")
    # Not "auto", "local", or the "ray://" of Ray's client.
    if not host or "/" in host or not port.isdecimal():
        return "", ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError, ValueError):  # or nobody can be there
        return address, source
    return "", ""


def remedy(source: str) -> str:
    """Return what to do about a cluster that does not answer."""
    undo = f"unset {ADDRESS}" if source == ADDRESS else f"delete {source}"
    return f"start the cluster, or {undo}"


def _folder(environment: Mapping[str, str]) -> Path:
    """Return where Ray keeps its folder."""
    if "RAY_TMPDIR" in environment:
        return Path(environment["RAY_TMPDIR"])
    if sys.platform.startswith("linux") and "TMPDIR" in environment:
        return Path(environment["TMPDIR"])
    return Path("/tmp")  # noqa: S108  # what Ray takes


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
