"""How soon a real device answers: Flower's SuperNode and ours, in the same run."""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks.chaos.deployment import Deployment
from benchmarks.edge.server import Answer, read_answers
from benchmarks.figures import Figure, say

__all__ = ["turnaround_figures"]

_ROOT = Path(__file__).parents[2]
_APP = Path(__file__).with_name("app")
_OURS = (sys.executable, "-m", "flwr_asyncdrop", "supernode")
_NODES = {
    "plain": ("flower-supernode",),
    "no_warm": (*_OURS, "--no-warm"),
    "poll_0": (*_OURS, "--poll", "0"),
    "warm": _OURS,
}
_BLOCKS, _TASKS = 3, 5
_GOAL = 1.0
_PATIENCE = 600.0
_SETTLE_SECONDS, _IDLE_SECONDS = 40.0, 20.0
_BYTES_PER_MB = 1e6


def turnaround_figures() -> Iterator[Figure]:
    """Have one SuperNode of each kind do tasks in turns.

    Flower's, ours, and ours without the trainer and without another pace. The client
    sends back its 1 MB of weights; one task is in flight. Then the same with another
    task pushed ahead, then with a codec, and then nothing. The first task of every
    turn, which finds the SuperNode idle for as long as the others' turns took, has
    figures of its own.
    """
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        home = Path(folder)
        kinds = list(_NODES)
        with Deployment(
            home,
            len(kinds),
            supernodes=list(_NODES.values()),
            PYTHONPATH=str(_ROOT),
        ) as deployment:
            say("one task in flight")
            single = _run(deployment, home / "single", ahead=0)
            yield from _seconds(single, kinds, "push_to_reply_s_{}")
            yield from _after_idling(single, kinds)
            say("another task pushed ahead")
            queued = _run(deployment, home / "queued", ahead=1)
            yield from _seconds(queued, kinds, "push_to_reply_s_{}_queued")
            say("one task in flight, 4 bits a number both ways")
            coded = _run(deployment, home / "coded", ahead=0, codec="q4")
            yield from _seconds(coded, kinds, "push_to_reply_s_{}_q4")
            say("without a task")
            time.sleep(_SETTLE_SECONDS)
            processes = {
                kind: _family(node.pid)
                for kind, node in zip(kinds, deployment.nodes, strict=True)
            }
            yield from _idle(processes)


def _run(
    deployment: Deployment, output: Path, ahead: int, codec: str = ""
) -> list[Answer]:
    run = deployment.run(
        _APP,
        output=str(output),
        nodes=len(_NODES),
        blocks=_BLOCKS,
        tasks=_TASKS,
        ahead=ahead,
        codec=codec,
    )
    run.wait(_PATIENCE)
    answers = read_answers(output)
    if len(answers) != len(_NODES) * _BLOCKS * _TASKS:
        raise RuntimeError(f"the run has failed\n{deployment.logs()}")
    return answers


def _seconds(answers: Iterable[Answer], kinds: list[str], name: str) -> list[Figure]:
    """Return the medians of a run, and what its processes computed for a task."""
    figures = []
    for partition, kind in enumerate(kinds):
        own = [a for a in answers if a.partition == partition and a.number]
        figure = name.format(kind)
        median = statistics.median(answer.seconds for answer in own)
        goal = _GOAL if kind == "warm" else None
        figures.append(Figure(figure, median, goal))
        cpu = statistics.median(answer.cpu for answer in own)
        figures.append(Figure(figure.replace("push_to_reply", "task_cpu"), cpu))
    return figures


def _after_idling(answers: Iterable[Answer], kinds: list[str]) -> list[Figure]:
    """Return the medians of the tasks that a SuperNode has waited for."""
    figures = []
    for partition, kind in enumerate(kinds):
        own = [a for a in answers if a.partition == partition and not a.number]
        median = statistics.median(answer.seconds for answer in own)
        figures.append(Figure(f"push_to_reply_s_{kind}_after_idling", median))
    return figures


def _family(process_id: int) -> list[psutil.Process]:
    node = psutil.Process(process_id)
    return [node, *node.children(recursive=True)]


def _idle(families: Mapping[str, list[psutil.Process]]) -> list[Figure]:
    """Return what devices without a task use: share of a CPU, and memory."""
    before = {kind: _cpu_seconds(family) for kind, family in families.items()}
    time.sleep(_IDLE_SECONDS)
    figures = []
    for kind, family in families.items():
        share = (_cpu_seconds(family) - before[kind]) / _IDLE_SECONDS
        memory = sum(process.memory_full_info().pss for process in family)
        figures.append(Figure(f"idle_cpu_percent_{kind}", 100 * share))
        figures.append(Figure(f"idle_memory_mb_{kind}", memory / _BYTES_PER_MB))
    return figures


def _cpu_seconds(family: Iterable[psutil.Process]) -> float:
    times = [process.cpu_times() for process in family]
    return sum(each.user + each.system for each in times)
