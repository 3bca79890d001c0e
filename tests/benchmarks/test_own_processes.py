"""Benchmarks that measure in a process of their own say why it has failed."""

import subprocess
import sys

import pytest

from benchmarks import crowd
from benchmarks.engine import _engine_rate
from benchmarks.figures import Figure
from benchmarks.planning import planning_figures


@pytest.fixture
def broken_python(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no module named transformers >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_plan_that_fails_says_why(broken_python, capfd):
    """What the process said was thrown away."""
    with pytest.raises(subprocess.CalledProcessError):
        next(planning_figures())
    assert "no module named transformers" in capfd.readouterr().err


def test_an_engine_that_fails_says_why(broken_python):
    with pytest.raises(RuntimeError, match=r"has failed\nno module named transformers"):
        _engine_rate()


def test_an_engine_that_measures_nothing_has_failed(monkeypatch):
    monkeypatch.setattr(sys, "executable", "true")
    with pytest.raises(RuntimeError, match="Flower's engine has failed"):
        _engine_rate()


def test_a_crowd_of_no_size_is_measured_in_all_sizes(monkeypatch, capsys):
    """It ended in a traceback."""
    monkeypatch.setattr(crowd, "crowd_figures", lambda: [Figure("sim_10k_rss_gb", 1.5)])
    monkeypatch.setattr(sys, "argv", ["crowd"])
    crowd.main()
    assert '{"name": "sim_10k_rss_gb", "value": 1.5}' in capsys.readouterr().out
