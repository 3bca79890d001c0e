"""An object that is named, and cannot be had: what to do about it."""

import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.references import load_reference


@pytest.mark.parametrize("reference", ["nowhere:app", "os.nowhere:app", "os:app", ":a"])
def test_what_is_not_there(reference):
    with pytest.raises(ConfigError, match=r"write package\.module:attribute"):
        load_reference("client_app", reference)


@pytest.mark.parametrize(
    "code", ["import flwr.nowhere", "from os import nowhere", "import os; os.nowhere"]
)
def test_what_a_module_lacks_is_not_the_fault_of_its_name(tmp_path, monkeypatch, code):
    (tmp_path / "lacking.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=r"nowhere.*: try it in Python by itself$"):
        load_reference("client_app", "lacking:app")
