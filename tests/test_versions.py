"""A run knows which version it is of, also where no package is installed."""

import ast
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import flwr_asyncdrop
from flwr_asyncdrop import versions

ROOT = Path(flwr_asyncdrop.__file__).parent
# They look for packages, and say what is absent.
LOOK_THEMSELVES = {"doctor/software.py", "simulation/ray/node_facts.py", "versions.py"}


@pytest.fixture
def nothing_installed(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", version)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The pyproject.toml beside the code."""
    path = tmp_path / "pyproject.toml"
    monkeypatch.setattr(versions, "_PROJECT", path)
    return path


def test_of_an_app_that_is_not_installed_it_is_that_of_its_bundle(
    project, nothing_installed
):
    project.write_text('[project]\nname = "flwr-asyncdrop"\nversion = "7.1"\n')
    assert versions.version_of("flwr-asyncdrop") == "7.1"
    assert versions.version_of("torch") == "not installed"


def test_the_code_that_runs_may_be_of_another_version_than_what_is_installed(project):
    project.write_text('[project]\nname = "flwr-asyncdrop"\nversion = "7.1"\n')
    assert versions.version_of("flwr-asyncdrop") == "7.1"


@pytest.mark.parametrize(
    "content",
    [
        '[project]\nname = "mine"\nversion = "9"\n',
        "[project]\n",
        "[tool.x]\n",
        "=",
        None,
    ],
)
def test_a_file_of_somebody_else_says_nothing(project, nothing_installed, content):
    if content is not None:
        project.write_text(content)
    assert versions.version_of("flwr-asyncdrop") == "not installed"


def test_installed_packages_have_their_version(project, monkeypatch):
    monkeypatch.setattr(versions, "version", lambda name: f"{name} 1.0")
    assert versions.version_of("flwr-asyncdrop") == "flwr-asyncdrop 1.0"


def asks(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = [node.names for node in imports if node.module == "importlib.metadata"]
    return any(alias.name == "version" for names in found for alias in names)


def test_nobody_else_asks_for_a_version():
    asking = {
        path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if asks(path)
    }
    assert asking == LOOK_THEMSELVES
