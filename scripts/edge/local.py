"""Where a container's paths and addresses are when there is no container."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.edge.compose import Service

__all__ = ["Places", "places_of"]

ROOT = Path(__file__).parents[2]
# What the Dockerfile copies into the images, and where to.
_COPIED = {"/opt/asyncdrop/edge": ROOT / "docker" / "edge", "/app": ROOT}
# The one folder that the images' user may write to.
_WRITABLE = "/var/lib/asyncdrop"


@dataclass(frozen=True)
class Places:
    """Translates the paths and addresses of one container.

    Attributes
    ----------
    folders : mapping of str to str
        Path in the container to path on this machine.
    addresses : mapping of str to str
        Address on the containers' network to address on this machine.
    """

    folders: Mapping[str, str]
    addresses: Mapping[str, str] = field(default_factory=dict)

    def local(self, value: str) -> str:
        """Return a path or an address on this machine; anything else as it is."""
        if value in self.addresses:
            return self.addresses[value]
        for inside in sorted(self.folders, key=len, reverse=True):
            if value == inside or value.startswith(f"{inside}/"):
                return self.folders[inside] + value.removeprefix(inside)
        return value


def places_of(
    service: Service, home: Path, addresses: Mapping[str, str] | None = None
) -> Places:
    """Return where the things of a service are.

    Parameters
    ----------
    service : Service
        As the compose file has it.
    home : Path
        What the process may write to.
    addresses : mapping of str to str, optional
        Of the other services.
    """
    folders = {inside: str(path) for inside, path in _COPIED.items()}
    folders[_WRITABLE] = str(home)
    for mount in service.mounts:
        if mount.is_volume:
            continue
        inside, outside = Path(mount.target), Path(mount.source)
        folders[str(inside)] = str(outside)
        if outside.is_file():
            # The service is told of the folder, and finds the file in it.
            folders[str(inside.parent)] = str(outside.parent)
    return Places(folders, addresses or {})
