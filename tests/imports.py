"""What a test imports from a folder of its own is not there for the next one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """Forget modules that are imported from below a folder, and changes of the path."""
    path, before = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and Path(file).is_relative_to(folder):
            del sys.modules[name]
