"""The entrypoints are scripts, not a package: they are imported from their folder."""

import importlib
from pathlib import Path

import pytest

EDGE = Path(__file__).parents[2] / "docker" / "edge"


@pytest.fixture
def entrypoint(monkeypatch):
    """Return a function that imports one of them by name."""
    monkeypatch.syspath_prepend(EDGE)
    return importlib.import_module


@pytest.fixture
def credentials(tmp_path):
    """Return a folder with all files that an entrypoint may look for."""
    for name in ("ca.crt", "key", "server.crt", "server.key"):
        (tmp_path / name).touch()
    return tmp_path
