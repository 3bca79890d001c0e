"""Memory and disk."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flwr_asyncdrop.client.memory import available_memory, left_in_container
from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning
from flwr_asyncdrop.readable import readable_bytes

_GB = 10**9
# A server and one worker of a small model; checkpoints of a large one.
_LEAST_MEMORY, _ENOUGH_MEMORY = _GB // 2, 2 * _GB
_LEAST_DISK, _ENOUGH_DISK = _GB // 5, 2 * _GB
_ENOUGH_SHARED = _GB // 2


def check_output(out: Path) -> Iterator[Finding]:
    """Check that files can be written to a folder, or to one made there.

    Parameters
    ----------
    out : Path
        The folder; it need not be there, and is not made.
    """
    out = out.absolute()
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            yield ok("output", f"{out} can be written")
    except OSError as error:
        yield problem(
            "output",
            f"{there} cannot be written: {error.strerror}",
            "choose another folder with --out",
        )
    free = shutil.disk_usage(there).free
    found = f"{readable_bytes(free)} free at {there}"
    mend = "free some space, or choose another folder with --out"
    yield _enough("disk", free, found, mend, _LEAST_DISK, _ENOUGH_DISK)


def check_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> Finding:
    """Check that there is memory for a server and a worker.

    Parameters
    ----------
    meminfo, cgroup : Path
        Where Linux says how much there is, and how much of it a container may use.
    """
    free = available_memory(meminfo)
    if free is None:
        return ok("memory", "this system does not say how much is free")
    left = left_in_container(cgroup)
    bound = "" if left is None or left >= free else " to this container"
    free = free if left is None else min(free, left)
    found = f"{readable_bytes(free)} free{bound}, {os.cpu_count()} cores"
    mend = "end other programs, or use fewer --workers"
    return _enough("memory", free, found, mend, _LEAST_MEMORY, _ENOUGH_MEMORY)


def check_shared(folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108  # measured, not written to
    """Check the shared memory that Ray puts its objects into; LocalGrid needs none.

    Parameters
    ----------
    folder : Path
        Where Linux has it.
    """
    if not folder.is_dir():
        return ok("shared memory", "this system has no /dev/shm")
    usage = shutil.disk_usage(folder)
    found = f"{readable_bytes(usage.free)} of {readable_bytes(usage.total)} free"
    if usage.free >= _ENOUGH_SHARED:
        return ok("shared memory", found)
    return warning(
        "shared memory",
        found,
        "for `flwr run` in a container start it with --shm-size=2g; `asyncdrop "
        "simulate` needs none",
    )


def _enough(
    name: str, free: int, found: str, mend: str, least: int, enough: int
) -> Finding:
    if free < least:
        return problem(name, found, mend)
    return ok(name, found) if free >= enough else warning(name, found, mend)
