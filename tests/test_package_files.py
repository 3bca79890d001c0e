"""What Flower packs of the app."""

from pathlib import Path

import flwr_asyncdrop


def test_no_module_is_called_like_a_test():
    """Flower leaves ``test_*.py`` and ``*_test.py`` out of the app that it installs."""
    modules = Path(flwr_asyncdrop.__file__).parent.rglob("*.py")
    names = [path.stem for path in modules]
    assert "client_app" in names
    assert [n for n in names if n.startswith("test_") or n.endswith("_test")] == []
