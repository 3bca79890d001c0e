"""The room starts without the package: it imports itself and what patches Flower."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flwr_asyncdrop.device
from flwr_asyncdrop.device.thin import forget_package, thin_command

ROOM = "flwr_asyncdrop.device"
ALLOWED = (f"{ROOM}.", "flwr_asyncdrop.flower_internals.")
MODULES = sorted(Path(flwr_asyncdrop.device.__file__).parent.glob("*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def is_of_the_standard_library(name):
    return name.partition(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_the_standard_library_the_room_and_flowers_internals(path):
    strange = [name for name in imported(path) if not is_of_the_standard_library(name)]
    assert [name for name in strange if not f"{name}.".startswith(ALLOWED)] == []


def test_the_shim_imports_the_standard_library_alone():
    """It is run by its path, isolated, once for every task."""
    shim = next(path for path in MODULES if path.stem == "shim")
    assert all(map(is_of_the_standard_library, imported(shim)))


@pytest.mark.parametrize("module", ["node", "superexec", "trainer"])
def test_a_program_of_the_room_starts_without_the_package_and_torch(module):
    command = thin_command(module)
    # In the place of its ``main``.
    assert "module.main(sys.argv[3:])" in command[3]
    command[3] = command[3].replace(
        "module.main(sys.argv[3:])",
        "'torch' in sys.modules or hasattr(package, 'load_submodel')",
    )
    assert subprocess.run(command, check=False).returncode == 0


def test_a_forgotten_package_is_imported_anew(monkeypatch):
    kept = {name: each for name, each in sys.modules.items() if "asyncdrop" in name}
    with monkeypatch.context() as context:
        for name, each in kept.items():
            context.setitem(sys.modules, name, each)
        forget_package()
        assert [name for name in sys.modules if name.startswith("flwr_asyncdrop")] == []
        assert "flwr" in sys.modules or "torch" in sys.modules
    assert sys.modules[ROOM] is kept[ROOM]
