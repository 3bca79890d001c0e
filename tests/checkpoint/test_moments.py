"""A run that is killed, or whose disk refuses, at each moment at which it writes."""

import errno
import os

import pytest

from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.storage.done import read_mark
from tests.checkpoint.moments import Moments
from tests.checkpoint.processes import SMALL, Simulation, files
from tests.nightly import NIGHTLY

RUN = [*SMALL, "--num-rounds=4", "--keep-checkpoints=1", "--algo=fedbuff"]
BEGINS = (
    "open .lock",
    "open history.jsonl$",
    "os.mkdir checkpoints",
    "os.mkdir draft",
    "os.rename draft",
    "os.rename 000001",  # there is another one by now
)
ENDS = (
    "os.remove .history.jsonl.lock",
    "open .model.safetensors.tmp",
    "os.rename .model.safetensors.tmp",
    "open .run.png.tmp",
    "os.rename .run.png.tmp",
    "open .done.json.tmp",
    "os.rename .done.json.tmp",
    "os.rename 0000",
    "os.remove state.json",
    "os.rmdir checkpoints",
    "os.remove .lock",
)
TIDYING = {"os.remove .history.jsonl.lock", "os.rmdir checkpoints", "os.remove .lock"}
"""An empty file or folder that stays costs nobody anything."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to, and its moments."""
    folder = tmp_path_factory.mktemp("whole")
    out, log, notes = folder / "run", folder / "log", folder / "notes"
    moments = Moments(out, notes=notes)
    with Simulation(*RUN, f"--out={out}", log=log, moments=moments) as run:
        assert run.wait() == 0, log.read_text()
    return out, notes.read_text().splitlines()


def test_killed_at_one_moment_after_the_other(whole, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    for moment in (*BEGINS, *ENDS):
        resumes = RunFolder(out).can_resume or RunFolder(out).is_trained
        words = [f"--resume={out}"] if resumes else [*RUN, f"--out={out}"]
        words += [] if resumes else ["--overwrite"]
        moments = Moments(out, kill=f"^{moment}")
        with Simulation(*words, log=log, moments=moments) as run:
            assert run.wait() == -9, (moment, log.read_text())
        assert resumes == (moment not in BEGINS)
    with Simulation(f"--resume={out}", log=log, moments=Moments(out)) as run:
        assert run.wait() == 0, log.read_text()
    assert files(out) == files(whole[0])
    names = {path.name for path in out.iterdir()}
    assert names == {path.name for path in whole[0].iterdir()}
    assert names == {"done.json", "history.jsonl", "model.safetensors", "run.png"}
    assert "Traceback" not in log.read_text()


def moments_that_fail(whole):
    """Return ranges of moments: some that end soon, some that do not."""
    count = len(whole[1])
    if NIGHTLY:
        return [range(n, n + length) for n in range(1, count + 1) for length in (1, 9)]
    last = count - 12
    return [range(2, 4), range(7, last), range(last, last + 6)]


CODES = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT)


@pytest.mark.parametrize("code", CODES if NIGHTLY else CODES[:1])
def test_whatever_the_disk_refuses_costs_a_line_and_no_training(code, whole, tmp_path):
    for number, failing in enumerate(moments_that_fail(whole)):
        out, log = tmp_path / str(number), tmp_path / f"log-{number}"
        moments = Moments(out, fail=failing, code=code)
        with Simulation(*RUN, f"--out={out}", log=log, moments=moments) as run:
            status = run.wait()
        text = log.read_text()
        assert "Traceback" not in text
        refused = set(whole[1][failing.start - 1 : failing.stop - 1])
        assert os.strerror(code) in text or refused <= TIDYING, failing
        if status:
            assert text.strip().splitlines()[-1].startswith("asyncdrop: cannot ")
            words = [*RUN, f"--out={out}", "--overwrite"]
            if RunFolder(out).can_resume:
                words = [f"--resume={out}"]
            with Simulation(*words, log=log, moments=Moments(out)) as run:
                assert run.wait() == 0, log.read_text()
        assert files(out) == files(whole[0]), failing
        assert read_mark(out) is not None
