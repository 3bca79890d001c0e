"""What examples tell people to install exists, suffices, and is not too much."""

import ast
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OWN = "flwr-asyncdrop"
PROJECTS = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""What is called otherwise than the module that it brings."""
SCRIPT = ROOT / "scripts" / "flwr_run.py"
BY_SCRIPT = sorted(
    path.parent.name
    for path in EXAMPLES.glob("*/README.md")
    if SCRIPT.name in path.read_text(encoding="utf-8")
)
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("notebooks/*.ipynb"))
INSTALL = re.compile(r"pip install ([^`#\n]+)")
CLONE = re.compile(r'"?\.\./\.\.(?:\[([\w,-]+)\])?"?')


def project_of(folder: Path) -> dict[str, Any]:
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def names_of(requirements: list[str], extras: set[str]) -> set[str]:
    """Return what is installed by name, with the package's own extras looked up."""
    project = project_of(ROOT)
    unknown = extras - set(project["optional-dependencies"])
    assert not unknown
    found: set[str] = set()
    left = [*requirements, *(f"{OWN}[{extra}]" for extra in extras)]
    while left:
        requirement = Requirement(left.pop())
        found.add(canonicalize_name(requirement.name))
        if requirement.name == OWN:
            for extra in requirement.extras:
                left += project["optional-dependencies"][extra]
    return found | {
        canonicalize_name(Requirement(each).name) for each in project["dependencies"]
    }


def imported_by(path: Path) -> set[str]:
    """Return the distributions of what a file imports, without Python's own."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    return {canonicalize_name(DISTRIBUTIONS.get(top, top)) for top in tops}


def text_of(notebook: str) -> str:
    text = (EXAMPLES / "notebooks" / notebook).read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("name", PROJECTS)
def test_an_example_depends_on_what_it_imports(name: str) -> None:
    folder = EXAMPLES / name
    [package] = (path.parent for path in folder.glob("*/__init__.py"))
    imported = set().union(*map(imported_by, package.glob("*.py")))
    needed = imported - {canonicalize_name(package.name)}
    assert needed <= names_of(project_of(folder)["dependencies"], set())


@pytest.mark.parametrize("name", BY_SCRIPT)
def test_a_readme_installs_what_its_command_needs(name: str) -> None:
    folder = EXAMPLES / name
    [install] = INSTALL.findall((folder / "README.md").read_text(encoding="utf-8"))
    [extras] = CLONE.findall(install)
    assert install.split()[-2:] == ["-e", "."]
    installed = names_of(project_of(folder)["dependencies"], set(extras.split(",")))
    assert imported_by(SCRIPT) <= installed
    # PyPI's torchvision beside a PyTorch for the CPU stops the import of transformers.
    assert "torchvision" not in installed


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_notebook_installs_the_clone(notebook: str) -> None:
    # The package is not on PyPI: by name it is found only where it is installed.
    [install] = INSTALL.findall(text_of(notebook))
    assert OWN not in install
    [extras] = CLONE.findall(install)
    names_of([], set(filter(None, extras.split(","))))
