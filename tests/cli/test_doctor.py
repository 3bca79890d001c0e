"""The doctor's table and its exit status."""

import pytest

from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.doctor import examination, ok, software
from scripts.flwr_run import free_ports


@pytest.fixture(autouse=True)
def a_machine_without_problems(monkeypatch, tmp_path):
    monkeypatch.setattr(software, "_OPTIONAL", {})
    monkeypatch.setattr(examination, "check_memory", lambda: ok("memory", "enough"))
    http, control = map(str, free_ports(2))
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", http)
    monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", control)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")


def test_warnings_are_no_failure(tmp_path, capsys):
    assert main(["doctor", f"--out={tmp_path}", f"--data-dir={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    assert ["ok", "digits", "embedded"] in rows
    row = next(number for number, row in enumerate(rows) if "cifar10" in row)
    assert rows[row][0] == "warning"
    assert rows[row + 1][:4] == ["->", "put", "its", "files"]
    assert "problems: 0, warnings: " in shown


def test_a_problem_is(tmp_path, capsys):
    missing = tmp_path / "missing"
    assert main(["doctor", f"--out={tmp_path}", f"--data-dir={missing}"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert f"problem data there is no folder {missing}" in shown
    assert "problems: 1, " in shown
