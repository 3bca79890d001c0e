"""How much memory the machine, or the container, has, and has left."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# The controller, limit, use, and the field of memory.stat that can be reclaimed:
# cgroup 2, then 1.
_CONTROLLERS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
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
    def here(
        cls,
        meminfo: Path = MEMINFO,
        cgroup: Path = CGROUP,
        membership: Path = MEMBERSHIP,
    ) -> Self:
        """Return that of this machine, or of its container; swap counts."""
        fields = _fields(meminfo)
        limits = [*_limits(cgroup, membership)]
        of_swap = [*_swap_limits(cgroup, membership)]
        free = _least(fields.get("MemAvailable"), *(left for _, left in limits))
        total = _least(fields.get("MemTotal"), *(most for most, _ in limits))
        swap_free = min([fields.get("SwapFree", 0), *(left for _, left in of_swap)])
        swap = min([fields.get("SwapTotal", 0), *(most for most, _ in of_swap)])
        return cls(
            None if free is None else free + swap_free,
            None if total is None else total + swap,
        )


def available_memory(meminfo: Path = MEMINFO) -> int | None:
    """Return the available bytes of this machine; None if it does not say."""
    return _fields(meminfo).get("MemAvailable")


def left_in_container(
    cgroup: Path = CGROUP, membership: Path = MEMBERSHIP
) -> int | None:
    """Return the bytes that the container may still use; None outside of one."""
    return _least(*(left for _, left in _limits(cgroup, membership)))


def _limits(cgroup: Path, membership: Path) -> Iterator[tuple[int, int | None]]:
    """Return the limits of this process's control groups, and what is left of each.

    A batch system or systemd limits a group below the root, where a container has its
    own. None is left where nobody says how much is used.
    """
    own = _groups(membership)
    for controller, limit, used, cached in _CONTROLLERS:
        for folder in _folders(cgroup / controller, own.get(controller, "")):
            most = _text(folder / limit)
            if most is None or most == "max" or int(most) >= _NO_LIMIT:
                continue
            taken, stat = _text(folder / used), _text(folder / "memory.stat")
            if taken is None or stat is None:
                yield int(most), None
                continue
            # Cached files count as used, but can be reclaimed.
            files = dict(line.split() for line in stat.splitlines()).get(cached, 0)
            yield int(most), int(most) - int(taken) + int(files)


def _swap_limits(cgroup: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Return how much swap control groups of version 2 have, and what is left of it.

    A batch system often lets its jobs have none.
    """
    for folder in _folders(cgroup, _groups(membership).get("", "")):
        most = _text(folder / "memory.swap.max")
        if most is not None and most != "max":
            used = int(_text(folder / "memory.swap.current") or 0)
            yield int(most), max(int(most) - used, 0)


def _folders(root: Path, group: str) -> tuple[Path, ...]:
    """Return the folder of a control group, and those of the groups that it is in."""
    own = root / group
    return (own, *(each for each in own.parents if each.is_relative_to(root)))


def _groups(membership: Path) -> dict[str, str]:
    """Return the group of this process by its controller, "" for cgroup 2."""
    lines = (_text(membership) or "").splitlines()
    parts = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    return {
        controller: group.lstrip("/")
        for _, controllers, group in parts
        for controller in controllers.split(",")
    }


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _fields(meminfo: Path) -> dict[str, int]:
    """Return the sizes that a machine says of its memory, in bytes."""
    lines = (_text(meminfo) or "").splitlines()
    named = (line.split(":", 1) for line in lines if ":" in line)
    words = ((name, rest.split()) for name, rest in named)
    return {name: int(size[0]) * 1024 for name, size in words if size[1:] == ["kB"]}


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
