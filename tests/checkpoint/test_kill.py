"""A run that is killed at any instant, or stopped, ends as if it had not been."""

import random
import re
import shlex
import signal

import pytest

from flwr_asyncdrop.checkpoint.files import all_checkpoints
from tests.checkpoint.processes import SMALL, Simulation, files, num_lines
from tests.nightly import NIGHTLY, nightly

KILLS = 8 if NIGHTLY else 3


def flags(folder, algorithm):
    """Return what starts a run, or goes on with it."""
    if all_checkpoints(folder / "checkpoints"):
        return [f"--resume={folder}"]
    # One that was killed before its first checkpoint is in the way.
    return [*SMALL, f"--algo={algorithm}", f"--out={folder}", "--overwrite"]


@pytest.mark.parametrize(
    ("algorithm", "workers"),
    [
        ("hetero-asyncdrop", 0),
        nightly("fedbuff-wait", 1),
        nightly("asyncdrop-plus", 0),
    ],
)
def test_killed_again_and_again(algorithm, workers, tmp_path):
    chance, log = random.Random(algorithm), tmp_path / "log"  # noqa: S311  # no secret
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with Simulation(*flags(whole, algorithm), log=log) as run:
        assert run.wait() == 0, log.read_text()
    length, kills = num_lines(whole), 0
    while kills < KILLS:
        told = [*flags(killed, algorithm), f"--workers={workers}"]
        with Simulation(*told, log=log) as run:
            # Anywhere between two lines of the history, or before the first.
            run.wait_for_lines(killed, chance.randint(0, length * (kills + 1) // KILLS))
            # One that was faster begins again: it is over, and has no checkpoints.
            if run.wait(chance.uniform(0, 0.05)) is None:
                run.kill(signal.SIGKILL)
                kills += 1
            assert run.wait() in (-signal.SIGKILL, 0), log.read_text()
    with Simulation(*flags(killed, algorithm), log=log) as run:
        assert run.wait() == 0, log.read_text()
    assert files(killed) == files(whole)
    assert not (killed / "checkpoints").exists()


@pytest.mark.parametrize(
    ("signum", "code", "workers"),
    [
        nightly(signal.SIGINT, 130, 1),
        (signal.SIGTERM, 143, 0),
        nightly(signal.SIGHUP, 129, 1),
    ],
)
def test_stopped_and_gone_on_with_as_it_says(signum, code, workers, tmp_path):
    log, folder = tmp_path / "log", tmp_path / "a folder"
    told = [*flags(folder, "asyncdrop"), f"--workers={workers}"]
    whole = tmp_path / "whole"
    with Simulation(*flags(whole, "asyncdrop"), log=log) as run:
        assert run.wait() == 0, log.read_text()
    with Simulation(*told, log=log) as run:
        run.wait_for_lines(folder, 15)
        run.kill(signum)
        assert run.wait() == code, log.read_text()
    history = (folder / "history.jsonl").read_text()
    assert '"end"' not in history
    assert "Traceback" not in log.read_text()
    (command,) = re.findall(r"to resume: asyncdrop simulate (.*)", log.read_text())
    with Simulation(*shlex.split(command), log=log) as run:
        assert run.wait() == 0, log.read_text()
    assert (folder / "history.jsonl").read_text().startswith(history)
    assert files(folder) == files(whole)
