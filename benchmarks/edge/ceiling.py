"""How many updates a second pass through a real SuperLink, and what each costs it."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.chaos.deployment import Deployment
from benchmarks.edge.server import Answer, read_answers
from benchmarks.figures import Figure, say, show
from benchmarks.usage import cpu_seconds
from scripts.flwr_run import end_with_signals

__all__ = ["ceiling_figures"]

_ROOT = Path(__file__).parents[2]
_APP = Path(__file__).with_name("app")
_OURS = (sys.executable, "-m", "flwr_asyncdrop", "supernode")
_IN_MEMORY = ":flwr-in-memory:"
_TENSORS = 20  # that the megabyte is split into
_DEVICES, _UPDATES = 8, 40
# Until every device is warm.
_BEFORE = 2 * _DEVICES
_GOAL = 4.5  # five times 0.9, before anything was done about it
_PATIENCE, _POLL = 600.0, 0.2
# Until the SuperNodes look every 3 s again, and while that is measured.
_SETTLE_SECONDS, _IDLE_SECONDS = 40.0, 30.0


@dataclass(frozen=True)
class _Case:
    """What is different from Flower's defaults."""

    database: str = ""
    packs: bool = False
    codec: str = ""
    goal: float | None = None
    idles: bool = False


_CASES = {
    "": _Case(idles=True),
    "_packed": _Case(packs=True),
    "_in_memory": _Case(_IN_MEMORY),
    "_in_memory_packed": _Case(_IN_MEMORY, packs=True, goal=_GOAL, idles=True),
    "_in_memory_q4": _Case(_IN_MEMORY, packs=True, codec="q4"),
}


def ceiling_figures() -> Iterator[Figure]:
    """Have 8 warm devices send back 1 MB at once, as fast as they can.

    In each case a SuperLink of its own, and all processes on this machine. In two of
    them the devices have nothing to do in the end.
    """
    for suffix, case in _CASES.items():
        say(f"updates{suffix}")
        with tempfile.TemporaryDirectory(prefix="ceiling-") as folder:
            yield from _measured(Path(folder), case, suffix)


def _measured(home: Path, case: _Case, suffix: str) -> Iterator[Figure]:
    with Deployment(
        home,
        _DEVICES,
        supernodes=[_OURS],
        database=case.database,
        PYTHONPATH=str(_ROOT),
    ) as deployment:
        output = home / "answers"
        run = deployment.run(
            _APP,
            **{"at-once": True},
            output=str(output),
            nodes=_DEVICES,
            tasks=_BEFORE + _UPDATES,
            tensors=_TENSORS,
            packs=case.packs,
            codec=case.codec,
        )
        superlink = psutil.Process(deployment.superlink.pid)
        _wait_for(output, _BEFORE, deployment)
        before = cpu_seconds(superlink)
        answers = _wait_for(output, _BEFORE + _UPDATES, deployment)
        cpu = cpu_seconds(superlink) - before
        seconds = sum(answer.seconds for answer in answers[_BEFORE:])
        yield Figure(
            f"fleet_updates_per_s{suffix}", _UPDATES / seconds, case.goal, at_least=True
        )
        yield Figure(f"superlink_cpu_s_per_update{suffix}", cpu / _UPDATES)
        run.wait(_PATIENCE)
        if not case.idles:
            return
        time.sleep(_SETTLE_SECONDS)
        before = cpu_seconds(superlink)
        time.sleep(_IDLE_SECONDS)
        share = (cpu_seconds(superlink) - before) / _IDLE_SECONDS / _DEVICES
        yield Figure(f"superlink_cpu_percent_per_idle_device{suffix}", 100 * share)


def _wait_for(output: Path, count: int, deployment: Deployment) -> list[Answer]:
    deadline = time.monotonic() + _PATIENCE
    while len(answers := read_answers(output)) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the run has failed\n{deployment.logs()}")
        time.sleep(_POLL)
    return answers


def main() -> None:
    """Measure."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    end_with_signals()
    show({"ceiling": ceiling_figures})


if __name__ == "__main__":
    main()
