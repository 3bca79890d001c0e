"""``asyncdrop init``: a small Flower project that runs."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

from flwr_asyncdrop.cli.message import tell
from flwr_asyncdrop.doctor.superlink import check_installation, check_ray
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.paths import problem_of_path
from flwr_asyncdrop.shell import as_operand, quoted

TEMPLATES = {
    ".gitignore": "gitignore",
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "$name/__init__.py": "package/__init__.py",
    "$name/task.py": "package/task.py",
    "$name/client_app.py": "package/client_app.py",
    "$name/server_app.py": "package/server_app.py",
    "tests/test_run.py": "tests/test_run.py",
}
"""The files of a project, and the template of each, without its ``.tmpl``."""

# What is both a module and the name of a project on a package index.
_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_]{0,38}[A-Za-z0-9])?")
# Flower would build another environment, and simulate two devices.
_RUN = (
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream "
    '--federation-config "num-supernodes=10 client-resources-num-cpus=1"'
)
_OWN_FOLDERS = ("tests",)


def add_arguments(parser: argparse.ArgumentParser, _: Sequence[str]) -> None:
    """Describe the command."""
    parser.description = (
        "Make a small Flower project that trains asynchronously on submodels: a model, "
        "a ClientApp, a ServerApp with HeteroAsyncDrop, a test, and a README with the "
        "commands. Nothing is installed."
    )
    parser.add_argument(
        "folder", metavar="DIR", help="where to make it: a new folder, or an empty one"
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the name of its package (default: the folder's own name)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Make the project, and say what to do next."""
    if not arguments.folder:
        raise ConfigError("DIR is empty: name a folder, or . for this one")
    if problem := problem_of_path(arguments.folder):
        raise ConfigError(f"DIR={arguments.folder!r} {problem}")
    folder = Path(arguments.folder).expanduser()
    # `resolve` raises where links go round.
    own = Path(os.path.realpath(folder)).name
    name = own if arguments.name is None else arguments.name
    make_project(folder, name)
    tell(
        f"made a Flower project in {folder}; next:\n"
        f"cd {quoted(as_operand(str(folder)))} && pip install -e '.[dev]'\n"
        "pytest\n"
        f"{_RUN}"
    )
    for finding in (check_installation(), check_ray(os.environ)):
        if finding.level != "ok":
            tell(f"{finding.level} {finding.name}: {finding.found} -> {finding.fix}")
    return 0


def make_project(folder: Path, name: str) -> None:
    """Write a project whose package is called `name`; all of it, or nothing.

    Parameters
    ----------
    folder : Path
        A folder that is not there, or is empty.
    name : str
        The name of the package: an identifier of ASCII letters, digits and
        underscores.

    Raises
    ------
    ConfigError
        If the name cannot be that of a package, or the folder is not empty, or not
        a folder.
    OSError
        If it cannot be written. What was written before is deleted.
    """
    if problem := problem_of_name(name):
        raise ConfigError(problem)
    for above in (folder, *folder.parents):
        if above.is_symlink() and not above.exists():
            raise ConfigError(
                f"{above} is a link to {above.readlink()}, which is not there: make "
                "that, or choose another DIR"
            )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: choose another DIR")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose a new folder, or empty it")
    texts = rendered(name)
    with _made(folder):
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")


def problem_of_name(name: str) -> str:
    """Say why a package cannot have a name, and what to do; "" if it can."""
    if not _NAME.fullmatch(name) or iskeyword(name):
        close = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:40].rstrip("_")
        usable = _NAME.fullmatch(close) and not iskeyword(close)
        return (
            f"{name!r} is no name of a Python package: give one with --name, of at "
            f"most 40 letters, digits and underscores, e.g. --name "
            f"{close if usable else 'my_project'}"
        )
    if name in _OWN_FOLDERS or _is_taken(name):
        return (
            f"{name!r} is the name of another module, which the package would hide: "
            f"give another one with --name, e.g. --name my_{name[:37]}"
        )
    return ""


def _is_taken(name: str) -> bool:
    if name in sys.stdlib_module_names:
        return True
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return True
    # An empty folder looks like a package without files.
    return spec is not None and spec.origin is not None


def rendered(name: str) -> Mapping[str, str]:
    """Return the files of a project by their paths in its folder."""
    words = {"name": name, "project": name.replace("_", "-")}
    templates = files("flwr_asyncdrop.cli") / "project"
    return {
        Template(path).substitute(words): Template(
            templates.joinpath(f"{template}.tmpl").read_text(encoding="utf-8")
        ).substitute(words)
        for path, template in TEMPLATES.items()
    }


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; if the block fails, delete what was made and written."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if missing:
            shutil.rmtree(missing[-1], ignore_errors=True)
        else:
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        raise
