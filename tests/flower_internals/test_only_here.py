"""No other room touches what Flower does not export."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flwr_asyncdrop

PACKAGE = Path(flwr_asyncdrop.__file__).parent
HERE = PACKAGE / "flower_internals"
PUBLIC = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.common",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
}
"""What these modules have in ``__all__`` is Flower's interface."""

A_MODULE = re.compile(r"flwr(\.[A-Za-z_]\w*)+(:\w+)?")


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_flowers(name: str) -> bool:
    return name.partition(".")[0] == "flwr"


def is_a_module(value: object) -> bool:
    return isinstance(value, str) and A_MODULE.fullmatch(value) is not None


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """Return the strings that stand alone: they do nothing."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def private_names(tree: ast.Module) -> Iterator[str]:
    """Name what a module takes from Flower that Flower does not export."""
    said = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_flowers(alias.name) and alias.name not in PUBLIC:
                    yield alias.name
        elif isinstance(node, ast.ImportFrom) and is_flowers(node.module or ""):
            exported = (
                importlib.import_module(node.module).__all__
                if node.module in PUBLIC
                else ()
            )
            for alias in node.names:
                if alias.name not in exported:
                    yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Constant) and node not in said:
            yield from (text for text in [node.value] if is_a_module(text))


@pytest.mark.parametrize(
    "path",
    sorted(path for path in PACKAGE.rglob("*.py") if HERE not in path.parents),
    ids=lambda path: path.relative_to(PACKAGE).as_posix(),
)
def test_a_module_takes_from_flower_what_flower_exports(path):
    # The logger is named as Flower's own are.
    found = set(private_names(parsed(path))) - {"flwr.asyncdrop"}
    assert found == set()


def test_the_check_finds_trespassers():
    source = '''
"""flwr.server is named in a docstring."""
import flwr.app, flwr.server, torch
from flwr.app import Message
from flwr.clientapp import typing
from flwr.supercore.run import Run
def f():
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
    import_module("flwr.supernode.start_client_internal")
    import_module("torch.nn")
'''
    assert set(private_names(ast.parse(source))) == {
        "flwr.server",
        "flwr.clientapp.typing",
        "flwr.supercore.run.Run",
        "flwr.serverapp.strategy.strategy_utils.aggregate_metricrecords",
        "flwr.supernode.start_client_internal",
    }


def of_ours(tree: ast.Module) -> set[str]:
    modules = (n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom))
    return {name for name in modules if name.startswith("flwr_asyncdrop")}


def test_this_room_imports_of_ours_itself_and_the_exceptions():
    imports = set().union(*(of_ours(parsed(path)) for path in HERE.glob("*.py")))
    strange = imports - {"flwr_asyncdrop.exceptions"}
    own = {
        name for name in strange if name.startswith("flwr_asyncdrop.flower_internals.")
    }
    assert strange == own


def test_this_room_needs_no_torch():
    code = f"""
import importlib, pathlib, sys, types
package = types.ModuleType("flwr_asyncdrop")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["flwr_asyncdrop"] = package
for path in pathlib.Path({str(HERE)!r}).glob("*.py"):
    importlib.import_module("flwr_asyncdrop.flower_internals." + path.stem)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.stem)
def test_what_touches_flower_says_in_which_versions_it_was_seen(path):
    text = path.read_text(encoding="utf-8")
    if path.stem in ("__init__", "pace"):  # they touch nothing
        return
    assert re.search(r"Seen\s+in\s+flwr\s+1\.34\b", text)
    assert re.search(r"to\s+1\.42\b", text)
