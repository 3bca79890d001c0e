import os
import pty
import subprocess
import sys
from pathlib import Path

from flwr_asyncdrop.cli.console import make_console, print_line
from tests.report.histories import history, write

ROOT = Path(__file__).parents[2]


def test_a_command_does_its_work_when_nobody_reads_what_it_prints(tmp_path):
    write(tmp_path / "fedbuff" / "seed-0", history("fedbuff", 0, [0.2, 0.6]))
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does once it has its lines
    done = subprocess.run(
        [sys.executable, "-m", "flwr_asyncdrop", "report", str(tmp_path)],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=600,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report" / "report.html").exists()


def test_a_terminal_that_was_closed_ends_no_command(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        console = make_console()
        print_line("read", console)
        os.close(ours)
        print_line("not read", console)
        assert console.quiet
