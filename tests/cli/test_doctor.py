"""The doctor's table and its exit status, whatever is missing."""

import subprocess
import sys

import pytest

from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.doctor import machine, ok, software
from scripts.flwr_run import free_ports
from tests.nightly import nightly


@pytest.fixture(autouse=True)
def a_machine_without_problems(monkeypatch, tmp_path):
    monkeypatch.setattr(software, "_OPTIONAL", {})
    monkeypatch.setattr(machine, "check_memory", lambda: ok("memory", "enough"))
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


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from flwr_asyncdrop.cli.main import main
if sys.argv[2] == "required":  # it takes seconds to import the others
    from flwr_asyncdrop.doctor import software
    software._OPTIONAL = {}
sys.exit(main(sys.argv[3:]))
"""
REQUIRED = ["flwr", "torch", "numpy", "safetensors", "zstandard", "packaging", "rich"]
# The gate looks at the optional packages too without one that some of them need, and
# without one that the look at them needs.
ALL = ["torch", "packaging"]
# The doctor itself does without these.
OPTIONAL = ["psutil,matplotlib,jinja2,torchvision,numba,ray"]
LOOKS = [(name, "all") for name in (*ALL, *OPTIONAL)]
REST = [name for name in REQUIRED if name not in ALL]
LOOKS += [(REST[0], "required")]
LOOKS += [nightly(name, "required") for name in REST[1:]]
LOOKS += [nightly(name, "all") for name in (*REST, "PIL")]


def without(packages, looks, *words):
    return subprocess.run(
        [sys.executable, "-c", HIDE, packages, looks, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize(("packages", "looks"), LOOKS)
def test_a_missing_package_is_a_line(packages, looks, tmp_path):
    done = without(packages, looks, "doctor", f"--out={tmp_path}")
    assert "Traceback" not in done.stdout + done.stderr
    assert "problems: " in done.stdout
    needed = packages in REQUIRED
    assert done.returncode == needed, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("problem ")]
    assert bool(lines) == needed
    if needed:
        assert packages in done.stdout


def test_a_cluster_without_ray_is_a_line_that_names_the_extra(tmp_path):
    done = without("ray", "required", "doctor", "--ray", f"--out={tmp_path}")
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1
    shown = " ".join(done.stdout.split())
    extra = "-> pip install 'flwr-asyncdrop[simulation]'"
    assert f"problem Ray cluster ray is not installed {extra}" in shown


def test_other_commands_name_what_is_missing_in_one_line(tmp_path):
    done = without("torch", "all", "simulate", f"--out={tmp_path / 'run'}")
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert "torch is not installed: pip install" in line
