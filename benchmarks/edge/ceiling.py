"""How many updates a second pass through a real SuperLink, and what each costs it."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.chaos.deployment import Deployment
from benchmarks.edge.server import Answer, read_answers
from benchmarks.figures import Figure, say, show

__all__ = ["ceiling_figures"]

_ROOT = Path(__file__).parents[2]
_APP = Path(__file__).with_name("app")
_OURS = (sys.executable, "-m", "flwr_asyncdrop", "supernode")
_DEVICES, _UPDATES = 8, 60
# Until every device is warm.
_BEFORE = 2 * _DEVICES
_PATIENCE, _POLL = 600.0, 0.2
IN_MEMORY = ":flwr-in-memory:"


def ceiling_figures(
    database: str = "",
    tensors: int = 1,
    packs: bool = False,
    codec: str = "",
    suffix: str = "",
) -> Iterator[Figure]:
    """Have 8 warm devices send back 1 MB at once, as fast as they can.

    Parameters
    ----------
    database : str
        The SuperLink's; a file unless given.
    tensors : int
        That the megabyte is split into.
    packs : bool
        Whether they travel as one.
    codec : str
        Scheme both ways; "" as the numbers are.
    suffix : str
        Of the figures' names.
    """
    with tempfile.TemporaryDirectory(prefix="ceiling-") as folder:
        home = Path(folder)
        with Deployment(
            home,
            _DEVICES,
            supernodes=[_OURS],
            database=database,
            PYTHONPATH=str(_ROOT),
        ) as deployment:
            output = home / "answers"
            run = deployment.run(
                _APP,
                **{"at-once": True},
                output=str(output),
                nodes=_DEVICES,
                tasks=_BEFORE + _UPDATES,
                tensors=tensors,
                packs=packs,
                codec=codec,
            )
            superlink = psutil.Process(deployment.superlink.pid)
            _wait_for(output, _BEFORE, deployment)
            before = sum(superlink.cpu_times()[:2])
            answers = _wait_for(output, _BEFORE + _UPDATES, deployment)
            cpu = sum(superlink.cpu_times()[:2]) - before
            run.wait(_PATIENCE)
    seconds = sum(answer.seconds for answer in answers[_BEFORE:])
    yield Figure(f"fleet_updates_per_s{suffix}", _UPDATES / seconds)
    yield Figure(f"superlink_cpu_s_per_update{suffix}", cpu / _UPDATES)


def _wait_for(output: Path, count: int, deployment: Deployment) -> list[Answer]:
    deadline = time.monotonic() + _PATIENCE
    while len(answers := read_answers(output)) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the run has failed\n{deployment.logs()}")
        time.sleep(_POLL)
    return answers


def main() -> None:
    """Measure with one setting."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--in-memory", action="store_true")
    parser.add_argument("--tensors", type=int, default=1)
    parser.add_argument("--packs", action="store_true")
    parser.add_argument("--codec", default="")
    options = parser.parse_args()
    database = IN_MEMORY if options.in_memory else ""
    say(str(options))
    show(
        {
            "ceiling": lambda: ceiling_figures(
                database, options.tensors, options.packs, options.codec
            )
        }
    )


if __name__ == "__main__":
    main()
