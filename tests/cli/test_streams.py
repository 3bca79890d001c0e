import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.histories import history, write

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
SHORT = [
    "compare",
    "--model=mlp",
    "--algos=fedbuff",
    "--seeds=0",
    "--num-rounds=1",
    "--local-steps=1",
    "--in-flight=2",
    "--devices=4",
]


def asyncdrop(words, redirections="", *, unbuffered=False):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    if unbuffered:
        environment["PYTHONUNBUFFERED"] = "1"
    return subprocess.run(
        [
            "sh",
            "-c",
            f'exec "$@" {redirections}',
            "sh",
            sys.executable,
            "-m",
            "flwr_asyncdrop",
            *words,
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("command", ["watch", "report", "--version"])
def test_what_a_full_disk_does_not_take_is_an_error_of_one_line(
    command, unbuffered, tmp_path
):
    """`watch` printed nothing, and exited with 0 or with Python's own 120."""
    write(tmp_path / "fedbuff" / "seed-0", history("fedbuff", 0, [0.2, 0.6]))
    words = [command] if command == "--version" else [command, str(tmp_path)]
    done = asyncdrop(words, f"> {FULL}", unbuffered=unbuffered)
    assert (done.returncode, done.stderr) == (
        1,
        "asyncdrop: the standard output cannot be written (No space left on device): "
        "let it go to where there is room\n",
    )


def test_a_refusal_has_its_status_where_nothing_is_open_for_its_line():
    assert asyncdrop(["simulate", "--bad"], "2>&-").returncode == 2


def test_runs_of_a_comparison_go_on_without_open_streams(tmp_path):
    """Each of them failed at its end, as there was nothing to flush."""
    done = asyncdrop([*SHORT, f"--out={tmp_path}"], "<&- >&- 2>&-")
    assert done.returncode == 0
    folder = tmp_path / "fedbuff" / "seed-0"
    assert (folder / "done.json").exists()
    assert "final accuracy" in (folder / "run.log").read_text()
