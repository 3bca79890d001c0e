"""Each package exports its public names once, sorted, and all of them."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import flwr_asyncdrop

PACKAGE = Path(flwr_asyncdrop.__file__).parent
# The package and its rooms; what a room nests deeper is its own affair.
INITS = sorted((*PACKAGE.glob("__init__.py"), *PACKAGE.glob("*/__init__.py")))


def dotted(init: Path) -> str:
    return ".".join(init.parent.relative_to(PACKAGE.parent).parts)


def sorting_key(name: str) -> tuple[int, str]:
    """Sort as ruff's RUF022 does: CONSTANTS, then Classes, then functions."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


def public_names(source: str) -> Iterator[str]:
    """Name what an ``__init__`` defines, or takes from elsewhere in the package."""
    for node in ast.parse(source).body:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").startswith("flwr_asyncdrop"):
                names = [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign):
            names = [name.id for name in node.targets if isinstance(name, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from (name for name in names if not name.startswith("_"))


@pytest.mark.parametrize("init", INITS, ids=dotted)
class TestPackage:
    def test_every_exported_name_exists(self, init):
        package = importlib.import_module(dotted(init))
        exported = getattr(package, "__all__", [])
        assert [name for name in exported if not hasattr(package, name)] == []

    def test_sorted_without_repetition(self, init):
        exported = getattr(importlib.import_module(dotted(init)), "__all__", [])
        assert list(exported) == sorted(set(exported), key=sorting_key)

    def test_complete(self, init):
        exported = getattr(importlib.import_module(dotted(init)), "__all__", [])
        public = public_names(init.read_text(encoding="utf-8"))
        assert [name for name in public if name not in exported] == []


def test_public_names_by_hand():
    source = (
        "import torch\n"
        "from pathlib import Path\n"
        "from flwr_asyncdrop.app.data.dataset import Dataset, Arrays as _Arrays\n"
        "LIMIT = 3\n"
        "LEAST: int = 1\n"
        "_hidden = 4\n"
        "def load(): ...\n"
        "class Loader: ...\n"
    )
    assert list(public_names(source)) == ["Dataset", "LIMIT", "LEAST", "load", "Loader"]
