"""The versions of Python and of the packages."""

import importlib
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning

_PACKAGE = "flwr-asyncdrop"
# Each by the module that must be importable, and what goes without it.
_OPTIONAL = {
    "torchvision": "data sets cannot be downloaded",
    "numba": "the server merges about half as fast",
}
_SHOWN = ("flwr", "torch")


def check_python(found: str | None = None, range_: str | None = None) -> Finding:
    """Check that Python is not too old.

    Parameters
    ----------
    found : str, optional
        Its version; by default this one's.
    range_ : str, optional
        What the package needs; by default as installed.
    """
    found = found or platform.python_version()
    if range_ is None:
        range_ = _installed_range()
    if SpecifierSet(range_).contains(found, prereleases=True):
        return ok("python", f"{found} ({sys.executable})")
    return problem(
        "python",
        f"{found} ({sys.executable}) is not in {range_}",
        "make a virtual environment with a newer Python",
    )


def _installed_range() -> str:
    try:
        return metadata(_PACKAGE)["Requires-Python"]
    except PackageNotFoundError:
        return ""


def check_required() -> Iterator[Finding]:
    """Check the packages that cannot be done without, as the package names them.

    Flower and PyTorch are shown on their own, the others only if there is something
    wrong with them.
    """
    try:
        lines = requires(_PACKAGE) or []
    except PackageNotFoundError:
        yield problem(
            _PACKAGE, "is not installed", "pip install -e . in its folder, or from PyPI"
        )
        return
    yield ok(_PACKAGE, version(_PACKAGE))
    findings = [
        check_package(requirement)
        for requirement in map(Requirement, lines)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    others = [each for each in findings if each.name not in _SHOWN]
    yield from (each for each in findings if each.name in _SHOWN)
    yield from (each for each in others if each.level != "ok")
    if all(each.level == "ok" for each in others):
        yield ok("other packages", ", ".join(sorted(each.name for each in others)))


def check_package(requirement: Requirement) -> Finding:
    """Check that a package is there, in a version that will do."""
    name, range_ = requirement.name, requirement.specifier
    mend = f"pip install '{requirement}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return problem(name, "is not installed", mend)
    if not range_.contains(found, prereleases=True):
        return problem(name, f"{found} is not in {range_}", mend)
    return ok(name, found)


def check_optional() -> Iterator[Finding]:
    """Check the packages that can be done without: if there, they must work."""
    for name, without in _OPTIONAL.items():
        try:
            found = version(name)
            importlib.import_module(name)
        except PackageNotFoundError:
            yield ok(name, f"is not installed: {without}")
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield warning(
                name,
                f"{found} cannot be imported: {reason}",
                f"install the {name} that fits torch and numpy, or uninstall it",
            )
        else:
            yield ok(name, found)
