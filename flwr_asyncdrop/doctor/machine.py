"""GPU, memory and disk."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning
from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.machine_memory import CGROUP, available_memory, left_in_container
from flwr_asyncdrop.readable import counted, readable_bytes

_DRIVER = Path("/proc/driver/nvidia/version")
_SHARED = Path("/dev/shm")  # noqa: S108  # measured, not written to
_GB = 10**9
# A server and one worker of a small model; checkpoints of a large one.
_LEAST_MEMORY, _ENOUGH_MEMORY = _GB // 2, 2 * _GB
_LEAST_DISK, _ENOUGH_DISK = _GB // 5, 2 * _GB
_ENOUGH_SHARED = _GB // 2


def check_gpu(driver: Path = _DRIVER) -> Finding:
    """Compute something on the GPU, if PyTorch sees one."""
    if not torch.cuda.is_available():
        if not driver.exists():
            return ok("gpu", "none: devices train on the CPU")
        return warning(
            "gpu",
            f"there is an NVIDIA driver, but torch {torch.__version__} uses no GPU",
            "install a torch with CUDA for that driver, or see CUDA_VISIBLE_DEVICES",
        )
    try:
        numbers = range(torch.cuda.device_count())
        names = [torch.cuda.get_device_name(number) for number in numbers]
        two = torch.ones(2, device="cuda").sum().item()
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        return problem(
            "gpu",
            f"it is there but fails: {reason}",
            "update its driver, or set CUDA_VISIBLE_DEVICES='' to do without",
        )
    if two != 2:
        return problem(
            "gpu", f"on {names[0]} 1 + 1 is {two:g}", "do not use this GPU for anything"
        )
    sizes = f"{readable_bytes(free)} of {readable_bytes(total)} free"
    return ok("gpu", f"{', '.join(names)}: {sizes}")


def check_output(out: Path) -> Iterator[Finding]:
    """Check that files can be written to a folder, or to one made there."""
    out = out.absolute()
    # A link to nowhere is in the way, and no folder.
    there = next(each for each in (out, *out.parents) if os.path.lexists(each))
    fix = "choose another folder with --out"
    try:
        with tempfile.TemporaryFile(dir=there):
            yield ok("output", f"{out} can be written")
    except OSError as error:
        yield problem("output", f"{there} cannot be written: {error.strerror}", fix)
    disk = there if there.exists() else there.parent
    free = shutil.disk_usage(disk).free
    found = f"{readable_bytes(free)} free at {disk}"
    fix = f"free some space, or {fix}"
    yield _enough("disk", free, found, fix, _LEAST_DISK, _ENOUGH_DISK)


def check_memory(cgroup: Path = CGROUP) -> Finding:
    """Check that there is memory for a server and a worker."""
    free = _free_memory()
    if free is None:
        return ok("memory", "without psutil nobody says how much is free")
    left = left_in_container(cgroup)
    bound = "" if left is None or left >= free else " to this container"
    free = free if left is None else min(free, left)
    found = (
        f"{readable_bytes(free)} free{bound}, {counted(os.cpu_count() or 1, 'core')}"
    )
    fix = "end other programs, or use fewer --workers"
    return _enough("memory", free, found, fix, _LEAST_MEMORY, _ENOUGH_MEMORY)


def _free_memory() -> int | None:
    try:
        return int(require("psutil", "doctor").virtual_memory().available)
    except MissingExtraError:
        return available_memory()


def check_shared(folder: Path = _SHARED) -> Finding:
    """Check the shared memory that Ray puts its objects into; LocalGrid needs none."""
    if not folder.is_dir():
        return ok("shared memory", "this system has no /dev/shm")
    usage = shutil.disk_usage(folder)
    found = f"{readable_bytes(usage.free)} of {readable_bytes(usage.total)} free"
    fix = (
        "for `flwr run` in a container start it with --shm-size=2g; `asyncdrop "
        "simulate` needs none"
    )
    return _enough("shared memory", usage.free, found, fix, 0, _ENOUGH_SHARED)


def _enough(
    name: str, free: int, found: str, fix: str, least: int, enough: int
) -> Finding:
    if free < least:
        return problem(name, found, fix)
    return ok(name, found) if free >= enough else warning(name, found, fix)
