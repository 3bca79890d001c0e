"""How much memory the machine, or the container, has, and has left."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
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


@dataclass(frozen=True)
class Memory:
    """Bytes that this process may still use, and all that it could ever get.

    None where nobody knows.
    """

    free: int | None = None
    total: int | None = None

    @classmethod
    def here(cls, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> Self:
        """Return that of this machine, or of its container; swap counts."""
        fields = _fields(meminfo)
        swap = fields.get("SwapTotal", 0)
        free = _least(fields.get("MemAvailable"), left_in_container(cgroup))
        total = _least(fields.get("MemTotal"), _container_limit(cgroup))
        return cls(
            None if free is None else free + fields.get("SwapFree", 0),
            None if total is None else total + swap,
        )


def available_memory(meminfo: Path = MEMINFO) -> int | None:
    """Return the available bytes of this machine; None if it does not say."""
    return _fields(meminfo).get("MemAvailable")


def left_in_container(cgroup: Path = CGROUP) -> int | None:
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


def _container_limit(cgroup: Path) -> int | None:
    for limit, _, _ in _CONTROLLERS:
        try:
            most = (cgroup / limit).read_text().strip()
        except OSError:
            continue
        return None if most == "max" or int(most) >= _NO_LIMIT else int(most)
    return None


def _fields(meminfo: Path) -> dict[str, int]:
    """Return the sizes that a machine says of its memory, in bytes."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return {}
    named = (line.split(":", 1) for line in lines if ":" in line)
    words = ((name, rest.split()) for name, rest in named)
    return {name: int(size[0]) * 1024 for name, size in words if size[1:] == ["kB"]}


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
