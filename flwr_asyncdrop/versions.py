"""Which versions of packages run."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

PACKAGE: Final = "flwr-asyncdrop"
ABSENT: Final = "not installed"
_PROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"


def version_of(package: str) -> str:
    """Return the version of a package, "not installed" where nobody knows it.

    That of this package is the one of the code that runs: ``flwr run`` takes it from
    the app's bundle, whether or not another version of it is installed, or none.
    """
    if package == PACKAGE and (own := _bundled()):
        return own
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT


def _bundled() -> str:
    """Return the version of the pyproject.toml beside the code, "" if there is none."""
    try:
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
        return str(project["version"]) if project["name"] == PACKAGE else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""
