"""The house of the package: its rooms stand above what they use, without a knot.

A room is a folder or a file of ``flwr_asyncdrop``. What counts as an import is every
import statement, also in functions and under TYPE_CHECKING, and every string that
names a module of the package, as those of ``importlib`` and of worker processes do.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import flwr_asyncdrop

ROOT = Path(flwr_asyncdrop.__file__).parent
PACKAGE = ROOT.name

GROUND = {
    "exceptions",
    "extras",
    "machine_memory",
    "overrides",
    "parameters",
    "paths",
    "readable",
    "references",
    "seeding",
    "shell",
    "shortage",
    "state_dict",
    "versions",
}
# Every room, from the ground up, and which rooms it may import.
ROOMS: Mapping[str, set[str]] = {
    "exceptions": set(),
    "readable": set(),
    "machine_memory": set(),
    "shell": set(),
    "versions": set(),
    "seeding": {"exceptions"},
    "extras": {"exceptions", "readable"},
    "shortage": {"readable"},
    "references": {"exceptions"},
    "paths": {"exceptions"},
    "overrides": {"exceptions"},
    "parameters": {"exceptions", "paths", "references"},
    "state_dict": {"exceptions", "readable"},
    "storage": {"exceptions", "readable"},
    "submodel": {"exceptions", "extras", "readable"},
    "masks": {*GROUND, "submodel"},
    "aggregation": {*GROUND, "submodel"},
    "objectives": {*GROUND, "submodel"},
    "wire": {*GROUND, "submodel"},
    "fleet": {*GROUND, "aggregation", "submodel", "wire"},
    "algorithms": {
        *GROUND,
        "aggregation",
        "fleet",
        "masks",
        "objectives",
        "submodel",
    },
    "flower_internals": {"exceptions"},
    "device": {"flower_internals"},
    "server": {
        *GROUND,
        "aggregation",
        "fleet",
        "flower_internals",
        "masks",
        "objectives",
        "submodel",
        "wire",
    },
    "completeness": {*GROUND, "server", "submodel", "wire"},
    "client": {*GROUND, "fleet", "objectives", "submodel", "wire"},
    "simulation": {*GROUND, "flower_internals", "wire"},
    "observers": {
        *GROUND,
        "completeness",
        "fleet",
        "server",
        "storage",
        "submodel",
        "wire",
    },
    "checkpoint": {
        *GROUND,
        "completeness",
        "fleet",
        "server",
        "storage",
        "submodel",
        "wire",
    },
    "strategy": {
        *GROUND,
        "aggregation",
        "algorithms",
        "checkpoint",
        "completeness",
        "fleet",
        "flower_internals",
        "masks",
        "objectives",
        "observers",
        "server",
        "submodel",
        "wire",
    },
    "report": {*GROUND, "algorithms", "observers", "storage"},
    "app": {
        *GROUND,
        "aggregation",
        "algorithms",
        "checkpoint",
        "client",
        "fleet",
        "masks",
        "objectives",
        "observers",
        "report",
        "server",
        "storage",
        "strategy",
        "submodel",
        "wire",
    },
    "client_app": {"app", "exceptions"},
    "server_app": {"app", "exceptions", "flower_internals"},
    "doctor": {
        *GROUND,
        "app",
        "client",
        "client_app",
        "flower_internals",
        "simulation",
    },
    "cli": {
        *GROUND,
        "algorithms",
        "app",
        "checkpoint",
        "client_app",
        "device",
        "doctor",
        "fleet",
        "observers",
        "report",
        "server",
        "server_app",
        "simulation",
        "storage",
        "strategy",
        "submodel",
    },
    "__main__": {"cli"},
    # No room imports from the package itself.
    "__init__": {
        "checkpoint",
        "client",
        "fleet",
        "server",
        "simulation",
        "strategy",
    },
}
# The rooms within submodel, and which of the others each may import.
INNER_ROOMS: Mapping[str, set[str]] = {
    "narrowing": set(),
    "probing": {"narrowing"},
    "discovery": {"narrowing", "probing"},
    "verification": {"narrowing", "probing"},
    "lora": {"narrowing", "probing", "verification"},
}
WITHOUT = {
    "flwr": {
        *("exceptions", "extras", "parameters", "paths", "references", "seeding"),
        *("submodel", "masks", "aggregation", "objectives", "algorithms"),
        *("app.data", "app.models", "__init__"),
    },
    "torch": {
        *("exceptions", "extras", "parameters", "paths", "references", "readable"),
        *("shell", "versions"),
        *("device", "flower_internals", "__init__", "__main__"),
    },
}
_NAMES_A_MODULE = re.compile(rf"(?P<module>{PACKAGE}\.[\w.]+)(:[\w.]+)?")

Sources = Mapping[str, str]


def sources() -> dict[str, str]:
    """Return the text of every module, by its dotted name within the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        # A folder goes by its own name; the package, which has none, by __init__.
        name = ".".join(parts[:-1] if len(parts) > 1 and is_init(parts) else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def is_init(parts: tuple[str, ...]) -> bool:
    return parts[-1] == "__init__"


@cache  # each room's test asks of all modules
def imported(source: str) -> tuple[str, ...]:
    """Name what all import statements and strings name, wherever they stand."""
    return tuple(_imported(source))


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant):
            named = _NAMES_A_MODULE.fullmatch(str(node.value))
            yield from [named["module"]] if named else []


def graph(modules: Sources) -> dict[str, set[str]]:
    """Return which modules of the package each module imports."""
    return {
        name: {
            resolved(target, modules)
            for target in imported(source)
            if target.split(".")[0] == PACKAGE
        }
        - {name}
        for name, source in modules.items()
    }


def resolved(target: str, modules: Sources) -> str:
    """Return the module in which a dotted name stands, or which it is."""
    _, *parts = target.split(".")
    while parts and ".".join(parts) not in modules:
        parts.pop()
    return ".".join(parts) or "__init__"


def arrows(modules: Sources) -> dict[tuple[str, str], list[str]]:
    """Return which modules are behind each arrow from a room to another one."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, targets in graph(modules).items():
        for target in sorted(targets):
            ends = (name.split(".")[0], target.split(".")[0])
            if ends[0] != ends[1]:
                found.setdefault(ends, []).append(f"{name} -> {target}")
    return found


def room_graph(modules: Sources) -> dict[str, set[str]]:
    """Return which rooms each room imports."""
    edges: dict[str, set[str]] = {}
    for room, used in arrows(modules):
        edges.setdefault(room, set()).add(used)
    return edges


def forbidden(modules: Sources, table: Mapping[str, set[str]]) -> list[str]:
    """Return the imports that the table does not have, of rooms that it has."""
    return sorted(
        line
        for (room, used), lines in arrows(modules).items()
        for line in lines
        if room in table and used not in table[room]
    )


def cycle(edges: Mapping[str, set[str]]) -> list[str]:
    """Return a circle of imports; nothing if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def upward(table: Mapping[str, set[str]]) -> list[str]:
    """Return the arrows of the table that do not point to a row further up."""
    rooms = list(table)
    return [
        f"{room} -> {used}"
        for place, room in enumerate(rooms)
        for used in sorted(table[room])
        if used not in rooms[:place]
    ]


def importers(modules: Sources, library: str, rooms: set[str]) -> list[str]:
    """Return the modules of some rooms that import a library."""
    return [
        name
        for name, source in modules.items()
        if any(f"{name}.".startswith(f"{room}.") for room in rooms)
        if any(target.split(".")[0] == library for target in imported(source))
    ]


MODULES = sources()


def test_every_room_is_in_the_table():
    assert {name.split(".")[0] for name in MODULES} == set(ROOMS)


def test_the_table_has_no_arrow_upward():
    assert upward(ROOMS) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_table_says(room):
    assert forbidden(MODULES, {room: ROOMS[room]}) == []


def test_rooms_within_submodel_import_only_what_the_table_says():
    inner = {
        name.removeprefix("submodel."): source.replace(
            f"{PACKAGE}.submodel.", f"{PACKAGE}."
        )
        for name, source in MODULES.items()
        if name.startswith("submodel.")
    }
    folders = {name.split(".")[0] for name in inner if "." in name}
    assert folders == set(INNER_ROOMS)
    assert upward(INNER_ROOMS) == []
    ends = {end for ends in arrows(inner) for end in ends}
    assert folders <= ends
    found = {
        (room, used)
        for room, used in arrows(inner)
        if room in INNER_ROOMS and used in INNER_ROOMS
    }
    allowed = {(room, used) for room, below in INNER_ROOMS.items() for used in below}
    assert found <= allowed


def test_no_circle_of_rooms():
    assert cycle(room_graph(MODULES)) == []


def test_no_circle_of_files():
    assert cycle(graph(MODULES)) == []


@pytest.mark.parametrize("library", WITHOUT)
def test_some_rooms_do_without(library):
    rooms = {name for name in MODULES if name in WITHOUT[library]}
    assert rooms == WITHOUT[library]
    assert importers(MODULES, library, rooms) == []


HOUSE = {
    "__init__": "",
    "ground": "import torch",
    "upper": "from flwr_asyncdrop.upper.file import thing",
    "upper.file": "from flwr_asyncdrop.ground import x",
}
TABLE: Mapping[str, set[str]] = {
    "ground": set(),
    "upper": {"ground"},
    "__init__": {"upper"},
}


class TestTheCheckItself:
    """It finds the faults of small houses."""

    def test_a_sound_house(self):
        assert forbidden(HOUSE, TABLE) == []
        assert upward(TABLE) == []
        assert cycle(graph(HOUSE)) == []
        assert arrows(HOUSE) == {("upper", "ground"): ["upper.file -> ground"]}

    @pytest.mark.parametrize(
        "fault",
        [
            "import flwr_asyncdrop.upper.file",
            "import os, flwr_asyncdrop.upper.file as file",
            "from flwr_asyncdrop.upper.file import thing",
            "from flwr_asyncdrop.upper import file",
            "def later():\n    from flwr_asyncdrop.upper import file",
            "if TYPE_CHECKING:\n    from flwr_asyncdrop.upper.file import Thing",
            "import_module('flwr_asyncdrop.upper.file')",
            "WORKER = 'flwr_asyncdrop.upper.file:main'",
        ],
    )
    def test_an_arrow_upward(self, fault):
        house = {**HOUSE, "ground": fault}
        assert forbidden(house, TABLE) == ["ground -> upper.file"]
        assert set(cycle(graph(house))) == {"ground", "upper.file"}

    @pytest.mark.parametrize(
        "fault", ["import flwr_asyncdrop", "from flwr_asyncdrop import LocalGrid"]
    )
    def test_the_package_itself(self, fault):
        house = {**HOUSE, "upper.file": fault}
        assert forbidden(house, TABLE) == ["upper.file -> __init__"]

    def test_a_file_that_imports_its_own_room(self):
        house = {**HOUSE, "upper.file": "from flwr_asyncdrop.upper import other"}
        assert forbidden(house, TABLE) == []
        assert set(cycle(graph(house))) == {"upper", "upper.file"}

    def test_rooms_in_a_circle_whose_files_are_in_none(self):
        house = {
            "__init__": "",
            "left.one": "from flwr_asyncdrop.right import one",
            "left.two": "",
            "right.one": "",
            "right.two": "from flwr_asyncdrop.left import two",
        }
        assert cycle(graph(house)) == []
        assert set(cycle(room_graph(house))) == {"left", "right"}

    def test_a_table_that_points_upward_or_nowhere(self):
        table = {"ground": {"upper"}, "upper": {"ground", "cellar"}}
        assert upward(table) == ["ground -> upper", "upper -> cellar"]

    def test_a_library(self):
        house = {**HOUSE, "upper.file": "def f():\n    import torch.nn as nn"}
        assert importers(house, "torch", {"ground", "upper"}) == [
            "ground",
            "upper.file",
        ]
        assert importers(house, "torch", {"up"}) == []

    def test_prose_is_no_import(self):
        assert list(imported("'''See flwr_asyncdrop.upper.file for more.'''")) == []
