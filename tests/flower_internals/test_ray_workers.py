"""Ray's workers start with a Python in any folder."""

import importlib
import shlex
import subprocess
import sys

import pytest

from flwr_asyncdrop.flower_internals.ray_workers import (
    HOOK,
    needs_quotes,
    with_quoted_python,
)

ODD = ["my project", "it's", "a;b", "$HOME", "a&b", "(x)"]


@pytest.mark.parametrize("name", ODD)
def test_a_shell_starts_python_as_ray_has_it(tmp_path, monkeypatch, name):
    python = tmp_path / name / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho started\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert needs_quotes(str(python))
    command = with_quoted_python(None)["py_executable"]
    done = subprocess.run(
        ["bash", "-c", f"exec {command}"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "started\n"


@pytest.mark.parametrize("name", ["my-project_2", "naïve", "项目"])
def test_ordinary_paths_need_nothing(name):
    assert not needs_quotes(f"/home/me/{name}/.venv/bin/python3.11")


def test_the_hook_is_found_and_keeps_what_flower_asks_for():
    module, _, name = HOOK.rpartition(".")
    hook = getattr(importlib.import_module(module), name)
    flowers = {"env_vars": {"PYTHONPATH": "/x"}}
    mine = {"py_executable": shlex.quote(sys.executable)}
    assert hook(flowers) == {**flowers, **mine}
    assert hook({"py_executable": "uv run"}) == {"py_executable": "uv run"}
