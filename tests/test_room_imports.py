"""The rooms below the server know torch and numpy, and nothing of Flower."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import flwr_asyncdrop

PACKAGE = Path(flwr_asyncdrop.__file__).parent
WITHOUT_FLOWER = ("aggregation", "app/data", "masks", "app/models", "submodel")
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for room in WITHOUT_FLOWER
    for path in (PACKAGE / room).rglob("*.py")
)
OWN_IMPORTS = {
    "flwr_asyncdrop.exceptions",
    *(f"flwr_asyncdrop.{room}" for room in WITHOUT_FLOWER),
}


def imported(source: str) -> Iterator[str]:
    """Name the modules of all import statements, wherever they stand."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            yield node.module or ""


def trespasses(module: str) -> bool:
    """Tell whether one of these rooms must not import ``module``."""
    if module.split(".")[0] == "flwr":
        return True
    if module.split(".")[0] == "flwr_asyncdrop":
        return ".".join(module.split(".")[:2]) not in OWN_IMPORTS
    return False


def test_every_room_is_looked_at():
    assert {module.split("/")[0] for module in MODULES} == set(WITHOUT_FLOWER)


@pytest.mark.parametrize("module", MODULES)
def test_never_imports_flower(module):
    source = (PACKAGE / module).read_text(encoding="utf-8")
    assert [name for name in imported(source) if trespasses(name)] == []


def test_the_check_finds_trespassers():
    source = (
        "import torch, flwr.app\n"
        "def f():\n"
        "    from flwr.common import Message\n"
        "    from flwr_asyncdrop.server.loop import run\n"
        "    from flwr_asyncdrop.submodel import Plan\n"
        "    import flwr_asyncdrop\n"
    )
    assert {name for name in imported(source) if trespasses(name)} == {
        "flwr.app",
        "flwr.common",
        "flwr_asyncdrop",
        "flwr_asyncdrop.server.loop",
    }
