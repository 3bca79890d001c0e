"""What has to be equal on two machines for the same task to give the same bits."""

import hashlib
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

Fingerprint = Callable[[], Mapping[str, str]]
"""Returns what else has to be equal, by name, such as a hash of the data."""

_PACKAGES = ("flwr", "torch", "numpy")
_HERE = Path(__file__).parents[2]
_LENGTH = 16


@dataclass(frozen=True)
class NodeFacts:
    """What has to be equal on all machines, by name, and a machine's processors."""

    facts: Mapping[str, str]
    processors: str

    @classmethod
    def here(cls, fingerprint: Fingerprint | None = None) -> "NodeFacts":
        """Look at this machine."""
        facts = {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            "flwr-asyncdrop": f"code {code_hash(_HERE)}",
            **({} if fingerprint is None else fingerprint()),
        }
        return cls(facts, _processors())

    def differences(self, here: "NodeFacts") -> str:
        """Return in one line what differs from `here`; "" if nothing does."""
        names = dict.fromkeys([*here.facts, *self.facts])
        return ", ".join(
            f"{name} {self.facts.get(name, 'absent')} there and "
            f"{here.facts.get(name, 'absent')} here"
            for name in names
            if self.facts.get(name) != here.facts.get(name)
        )


@cache
def code_hash(folder: Path) -> str:
    """Return a hash of the Python files in a folder: their names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:_LENGTH]


def _version(package: str) -> str:
    try:
        # "2.13.0+cpu" and "2.13.0+cu128" compute differently.
        return str(torch.__version__) if package == "torch" else version(package)
    except PackageNotFoundError:
        return "absent"


def _processors() -> str:
    """Name what decides how sums are rounded."""
    parts = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name(0))
    return " ".join(parts)
