"""Which process listens on a port, as far as Linux says."""

import socket
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"


def is_taken(port: int) -> bool:
    """Return whether a program listens on a port of the loopback interface."""
    with socket.socket() as probe:
        # Else the last connections of one that has ended would count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def listener(port: int) -> tuple[int, str] | None:
    """Return the process id and the command line of who listens on a port.

    None if nobody does, if it is another user's, or if this is not Linux.
    """
    inodes = set(_inodes(port))
    if not inodes:
        return None
    for process in _PROC.glob("[0-9]*"):
        if inodes & set(_sockets(process)):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            return int(process.name), command.decode(errors="replace").strip()
    return None


def _inodes(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port."""
    for name in ("tcp", "tcp6"):
        try:
            _, *lines = (_PROC / "net" / name).read_text().splitlines()
        except OSError:
            continue
        for fields in map(str.split, lines):
            address, state, inode = fields[1], fields[3], fields[9]
            if state == _LISTEN and int(address.rpartition(":")[2], 16) == port:
                yield inode


def _sockets(process: Path) -> Iterator[str]:
    """Yield the inodes of a process's sockets; of none if they are not to be seen."""
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target.removeprefix("socket:[").removesuffix("]")
