"""``asyncdrop simulate`` in a process that can be killed, and started again at once."""

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

# Here, so that the fork server has imported all that a run needs.
import flwr_asyncdrop.cli.simulate
import flwr_asyncdrop.report.pictures  # noqa: F401
from flwr_asyncdrop.cli.main import main
from tests.checkpoint.moments import Moments

# Imports take seconds: the fork server has them done, and each process is a fork.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.checkpoint.processes"])

SMALL = (
    "--model=mlp",
    "--num-rounds=12",
    "--local-steps=2",
    "--in-flight=3",
    "--devices=6",
    "--levels=3",
    "--jitter=0.3",
    "--dropout=0.1",
    "--checkpoint-every=2",
)


class Simulation:
    """One process of the command.

    Parameters
    ----------
    *flags : str
        What it is told.
    log : Path
        Where all that it prints goes.
    moments : Moments, optional
        What it does when it changes something on the disk.
    largest : int
        Bytes that a file can have.
    """

    def __init__(
        self,
        *flags: str,
        log: Path,
        moments: Moments | None = None,
        largest: int = resource.RLIM_INFINITY,
    ) -> None:
        words = ["simulate", *flags]
        self._process = _CONTEXT.Process(
            target=_simulate, args=(words, log, moments, largest)
        )
        self._process.start()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.wait()

    def kill(self, signum: int) -> None:
        os.kill(self._process.pid, signum)

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit code; None if it is still running."""
        self._process.join(seconds)
        return self._process.exitcode

    def limit(self, largest: int) -> None:
        """Let files have so many bytes from now on."""
        limits = (largest, resource.RLIM_INFINITY)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limits)

    def make_room(self) -> None:
        """Let files have any size again."""
        self.limit(resource.RLIM_INFINITY)

    def wait_for_lines(self, folder: Path, count: int, seconds: float = 300) -> None:
        """Wait until the history of a run has so many lines, or it is over."""
        deadline = time.monotonic() + seconds
        while self.wait(0.002) is None and num_lines(folder) < count:
            assert time.monotonic() < deadline, "the run does not get on"


def _simulate(
    arguments: list[str], log: Path, moments: Moments | None, largest: int
) -> None:
    if moments is not None:
        moments.begin()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.exit(main(arguments))


def num_lines(folder: Path) -> int:
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(log: Path, text: str, run: Simulation, seconds: float = 300) -> None:
    """Wait until a run has printed something."""
    deadline = time.monotonic() + seconds
    while text not in log.read_text():
        assert run.wait(0.01) is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()


def files(folder: Path) -> tuple[list[dict], bytes]:
    """Return what must be the same: the history without wall, and the model."""
    lines = (folder / "history.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    for line in history:
        del line["wall"]
    return history, (folder / "model.safetensors").read_bytes()
