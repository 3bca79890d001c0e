"""The versions of Python and of the packages."""

import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning
from flwr_asyncdrop.extras import MATPLOTLIB_FOLDER, logs_of, matplotlib_fix
from flwr_asyncdrop.readable import one_line

_PACKAGE = "flwr-asyncdrop"
# By name: the module that must be importable, its extra, and what goes without it.
_OPTIONAL = {
    "ray": ("ray", "simulation", "`flwr run` simulates nothing, `asyncdrop` does"),
    "matplotlib": ("matplotlib", "report", "runs get no pictures"),
    "jinja2": ("jinja2", "report", "no report is written"),
    "rich": ("rich", "report", "of `asyncdrop`, init, doctor and supernode alone run"),
    "pillow": ("PIL", "data", "compact archives of images are not read"),
    "torchvision": ("torchvision", "data", "data sets cannot be downloaded"),
    "numba": ("numba", "fast", "the server merges half as fast"),
    "prometheus-client": ("prometheus_client", "monitoring", "there are no metrics"),
    "psutil": (
        "psutil",
        "doctor",
        "who has a port is not seen, nor free memory but on Linux",
    ),
    "tensorboard": ("tensorboard", "tensorboard", "track='tensorboard' is refused"),
    "mlflow-skinny": ("mlflow", "mlflow", "track='mlflow' is refused"),
    "wandb": ("wandb", "wandb", "track='wandb' is refused"),
    "opentelemetry-sdk": (
        "opentelemetry.sdk.trace",
        "tracing",
        "track='opentelemetry' is refused",
    ),
    "peft": ("peft", "lora", "adapters of PEFT are not planned"),
}
_SHOWN = ("flwr", "torch")


def check_python(found: str | None = None, range_: str | None = None) -> Finding:
    """Check that Python, by default this one, is as the installed package needs it."""
    found = found or platform.python_version()
    if range_ is None:
        try:
            range_ = metadata(_PACKAGE)["Requires-Python"]
        except PackageNotFoundError:
            range_ = ""
    if SpecifierSet(range_).contains(found, prereleases=True):
        return ok("python", f"{found} ({sys.executable})")
    return problem(
        "python",
        f"{found} ({sys.executable}) is not in {range_}",
        "make a virtual environment with a newer Python",
    )


def check_required() -> Iterator[Finding]:
    """Check the packages that ours requires: each of `_SHOWN`, the others together."""
    try:
        lines = requires(_PACKAGE) or []
    except PackageNotFoundError:
        yield problem(
            _PACKAGE, "is not installed", "pip install -e . in the folder of its clone"
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
    """Check that a package is there, in a version that will do, and works."""
    name, range_ = requirement.name, requirement.specifier
    fix = f"pip install '{requirement}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return problem(name, "is not installed", fix)
    if reason := _unfit(found, range_):
        return problem(name, reason, fix)
    try:
        import_module(name)
    except Exception as error:
        fix = f"pip install --force-reinstall '{requirement}'"
        return problem(name, f"{found} cannot be imported: {one_line(error)}", fix)
    return ok(name, found)


def check_optional() -> Iterator[Finding]:
    """Check the packages of the extras: those there must be new enough, and work."""
    ranges = _ranges()
    working = []
    for name, (module, extra, without) in _OPTIONAL.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            install = f"pip install '{_PACKAGE}[{extra}]'"
            yield ok(name, f"is not installed: {without} ({install})")
            continue
        range_ = ranges.get(name, SpecifierSet())
        if reason := _unfit(found, range_):
            yield warning(name, reason, f"pip install '{name}{range_}'")
            continue
        try:
            with logs_of(module) as said:
                import_module(module)
        except Exception as error:
            reason = one_line(error)
            fix = f"install the {name} that fits torch and numpy, or uninstall it"
            fix = matplotlib_fix(error) or fix
            yield warning(name, f"{found} cannot be imported: {reason}", fix)
        else:
            working.append(f"{name} {found}")
            if name == "matplotlib" and said:
                reason = f"cannot keep its cache, and is slower to begin: {said[0]}"
                yield warning(name, reason, MATPLOTLIB_FOLDER)
    if working:
        yield ok("extras", ", ".join(working))


def _unfit(found: str, range_: SpecifierSet) -> str:
    """Return why a version will not do, "" if it will."""
    try:
        fits = range_.contains(found, prereleases=True)
    except InvalidVersion:  # of somebody's own build
        return f"{found} is no version that can be compared with {range_}"
    return "" if fits else f"{found} is not in {range_}"


def _ranges() -> dict[str, SpecifierSet]:
    """Return the versions that the extras want, by the name of the package."""
    try:
        lines = requires(_PACKAGE) or []
    except PackageNotFoundError:
        return {}
    extras = {extra for _, extra, _ in _OPTIONAL.values()}
    return {
        each.name: each.specifier
        for each in map(Requirement, lines)
        if each.marker is not None
        and any(each.marker.evaluate({"extra": extra}) for extra in extras)
    }
