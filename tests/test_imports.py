"""Tests write modules of the same names, and commands go where a test is."""

import sys
from importlib import import_module

import pytest

from tests.imports import forgotten


def test_a_module_of_a_test_is_none_of_the_next_one(tmp_path):
    path = list(sys.path)
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "written_by_a_test.py").write_text(f"number = {number}")
        with forgotten(tmp_path):
            sys.path.append(str(folder))
            assert import_module("written_by_a_test").number == number
            import_module("json.tool")
        assert sys.path == path
    with pytest.raises(ModuleNotFoundError):
        import_module("written_by_a_test")
    assert "json.tool" in sys.modules


def test_each_test_is_followed_by_that(tmp_path_factory):
    """Here by all that came before this one."""
    folder = str(tmp_path_factory.getbasetemp())
    files = [getattr(module, "__file__", None) for module in sys.modules.values()]
    assert [file for file in files if file and file.startswith(folder)] == []
    assert [entry for entry in sys.path if entry.startswith(folder)] == []
