"""How much memory this process may still use."""

from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Limit, use, and the field of memory.stat that can be reclaimed: cgroup 2, then 1.
_CONTROLLERS = (
    ("memory.max", "memory.current", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
_NO_LIMIT = 2**60


def training_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes that training may take: the GPU's, else the machine's, or 0."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    bounds = (available_memory(meminfo), left_in_container(cgroup))
    return min((bound for bound in bounds if bound is not None), default=0)


def available_memory(meminfo: Path = _MEMINFO) -> int | None:
    """Return the available bytes of this machine; None if it does not say."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "MemAvailable" not in fields:
        return None
    kilobytes, _, _ = fields["MemAvailable"].strip().partition(" ")
    return int(kilobytes) * 1024


def left_in_container(cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that the container may still use; None outside of one."""
    for limit, used, cached in _CONTROLLERS:
        try:
            most = (cgroup / limit).read_text().strip()
            taken = int((cgroup / used).read_text())
            stat = (cgroup / used).with_name("memory.stat").read_text()
        except OSError:
            continue
        if most == "max" or int(most) >= _NO_LIMIT:
            return None
        # Cached files count as used, but can be reclaimed.
        files = dict(line.split() for line in stat.splitlines()).get(cached, 0)
        return int(most) - taken + int(files)
    return None
