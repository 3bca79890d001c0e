"""What has to be equal on two machines for the same task to give the same bits."""

import hashlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Self

import torch

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import printable, shown

Fingerprint = Callable[[], Mapping[str, str]]
"""Returns what else has to be equal, by name, such as a hash of the data."""

UNSENT_FOLDERS = ("__pycache__", ".git", ".venv")
"""Folders within a package that no node is sent."""

_PACKAGES = ("flwr", "torch", "numpy")
_HERE = Path(__file__).parents[2]
_LENGTH = 16


@dataclass(frozen=True)
class NodeFacts:
    """What has to be equal on all machines, by name, and a machine's processors."""

    facts: Mapping[str, str]
    processors: str

    @classmethod
    def here(cls, fingerprint: Fingerprint | None = None) -> Self:
        """Look at this machine."""
        facts = {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            "flwr-asyncdrop": f"code {code_hash(_HERE)}",
            **({} if fingerprint is None else _given(fingerprint)),
        }
        return cls(facts, _processors())

    def with_code(self, code: Mapping[str, str]) -> Self:
        """Return the same, and what hash the code of each module has."""
        own = {f"module {name}": f"code {value}" for name, value in code.items()}
        return replace(self, facts={**self.facts, **own})

    def differences(self, here: Self) -> str:
        """Return in one line what differs from `here`; "" if nothing does."""
        names = dict.fromkeys([*here.facts, *self.facts])
        return ", ".join(
            f"{name} {self.facts.get(name, 'absent')} there and "
            f"{here.facts.get(name, 'absent')} here"
            for name in names
            if self.facts.get(name) != here.facts.get(name)
        )


def hashes(modules: Mapping[str, Path]) -> dict[str, str]:
    """Return a hash of each module's code, by its name."""
    return {name: code_hash(path) for name, path in modules.items()}


def as_imported(code: Mapping[str, str]) -> dict[str, str]:
    """Return this process's hashes of modules; `code` has those of another one.

    A module that is not imported here has made no difference, and counts as equal.
    """
    found = {
        name: path
        for name in code
        if name in sys.modules and (path := path_of(sys.modules[name]))
    }
    return {**code, **hashes(found)}


def path_of(module: ModuleType) -> Path | None:
    """Return a package's folder, or a module's file if it is Python; else None.

    None, too, if it is not there any more, as a file that was made to be imported.
    """
    folders = list(getattr(module, "__path__", ()))
    if folders:
        path = Path(folders[0])
        return path.resolve() if len(folders) == 1 and path.is_dir() else None
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    return path if path.is_file() else None


def code_hash(path: Path) -> str:
    """Return a hash of a Python file, or of all in a folder: names and contents."""
    digest = hashlib.sha256()
    for each in sorted(_python_files(path)) if path.is_dir() else [path]:
        content = each.read_bytes()
        name = "" if each == path else each.relative_to(path).as_posix()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:_LENGTH]


def _python_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*.py"):
        is_sent = not {*UNSENT_FOLDERS} & {*path.relative_to(folder).parts}
        if is_sent and path.is_file():  # an editor's lock is a link to nowhere
            yield path


def _given(fingerprint: Fingerprint) -> Mapping[str, str]:
    """Return what a user's function returns; ConfigError if that is no mapping."""
    found: object = fingerprint()
    if isinstance(found, Mapping) and all(isinstance(name, str) for name in found):
        return found
    raise ConfigError(
        f"fingerprint returned {printable(shown(found))}: return a mapping of names to "
        "texts, e.g. {'data': 'a hash'}"
    )


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
