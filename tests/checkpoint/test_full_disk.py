"""A disk that is full while a run writes, as the system says it.

Files cannot have more than so many bytes: the system writes what fits, and refuses the
rest, as it does with a disk.
"""

import signal

import pytest

from tests.checkpoint.moments import Moments
from tests.checkpoint.processes import SMALL, Simulation, files, num_lines, wait_for
from tests.nightly import nightly

RUN = [*SMALL, "--num-rounds=6", "--algo=asyncdrop"]
# Bytes of a file with which the history, or only the model, does not fit.
HISTORY, MODEL = 6000, 50_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run with enough room."""
    folder = tmp_path_factory.mktemp("whole")
    out, log = folder / "run", folder / "log"
    with Simulation(*RUN, f"--out={out}", log=log, moments=Moments(out)) as run:
        assert run.wait() == 0, log.read_text()
    assert HISTORY < (out / "history.jsonl").stat().st_size < MODEL
    assert (out / "model.safetensors").stat().st_size > MODEL
    return out


@pytest.fixture
def start(tmp_path):
    """Start a run in a process whose files have a limit."""
    out, log = tmp_path / "run", tmp_path / "log"

    def started(largest):
        words = [*RUN, f"--out={out}"]
        return Simulation(*words, log=log, moments=Moments(out), largest=largest)

    log.touch()
    return started, out, log


@pytest.mark.parametrize(
    ("largest", "name"),
    [nightly(HISTORY, "history.jsonl"), (MODEL, "model.safetensors")],
)
def test_it_trains_waits_and_ends_when_there_is_room(largest, name, whole, start):
    started, out, log = start
    with started(largest) as run:
        wait_for(log, "waiting until that is possible", run)
        if name == "history.jsonl":
            # Of the line that did not fit there is nothing, and the others wait.
            assert (out / name).read_bytes().endswith(b"}\n")
            assert 2 < num_lines(out) < num_lines(whole)
            assert "the run continues and keeps its lines" in log.read_text()
        assert f"cannot write {out / name}: File too large" in log.read_text()
        assert not (out / "done.json").exists()
        run.make_room()
        assert run.wait() == 0, log.read_text()
    assert files(out) == files(whole)
    assert {p.name for p in out.iterdir()} == {p.name for p in whole.iterdir()}
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGKILL, -9), nightly(signal.SIGINT, 130)]
)
def test_one_that_is_ended_while_it_waits_resumes(signum, code, whole, start):
    """From its checkpoints, which fitted when there was still room."""
    started, out, log = start
    with started(10**9) as run:
        run.wait_for_lines(out, 12)
        run.limit(HISTORY)
        wait_for(log, "waiting until that is possible", run)
        run.kill(signum)
        assert run.wait() == code
    assert f"to try again: asyncdrop simulate --resume {out}" in log.read_text()
    with Simulation(f"--resume={out}", log=log, moments=Moments(out)) as run:
        assert run.wait() == 0, log.read_text()
    assert files(out) == files(whole)
    assert "Traceback" not in log.read_text()
