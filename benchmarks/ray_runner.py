"""CPU of an update through RayRunner, whose ClientApp does nothing, on a cluster here.

    python -m benchmarks.ray_runner

1 MB there and as much back, eight in flight, one actor on one node, and two on two
nodes. All messages have the same arrays, as in a synchronous round, or each has others,
as when the model changes with every update. The CPU is that of this process, of the
actors, and of all else that the cluster consists of, less what the cluster takes
without anything to do.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil

from benchmarks.figures import Figure, show
from benchmarks.local_grid import NODES, content_of, grid_rate, make_app
from benchmarks.ray_nodes import RayNodes
from flwr_asyncdrop.simulation import LocalGrid, RayRunner
from scripts.flwr_run import end_with_signals

__all__ = ["ray_figures"]

UPDATES = 400
MEGABYTE = 1_000_000
# In turn: more than the runner keeps, so that each message is a version of its own.
NEW_VERSIONS = 16
_IDLE_SECONDS = 5.0


def ray_figures() -> Iterator[Figure]:
    """Measure milliseconds of CPU an update, by who takes them."""
    for num_nodes in (1, 2):
        with RayNodes(num_nodes) as nodes:
            runner = RayRunner(make_app, address=nodes.address, actors=num_nodes)
            with LocalGrid(num_nodes=NODES, runner=runner) as grid:
                while runner.num_actors < num_nodes:
                    runner.collect(0.1)
                for kind, count in (("same", 1), ("new", NEW_VERSIONS)):
                    name = f"ray_{num_nodes}_actors_{kind}"
                    yield from _figures(name, nodes, grid, count)


def _figures(
    name: str, nodes: RayNodes, grid: LocalGrid, versions: int
) -> Iterator[Figure]:
    best = min((_cpu_of_updates(nodes, grid, versions) for _ in range(3)), key=sum)
    for part, milliseconds in zip(("driver", "actors", "others"), best, strict=True):
        yield Figure(f"{name}_{part}_cpu_ms", milliseconds)
    yield Figure(f"{name}_cpu_ms", sum(best), 10)


def _cpu_of_updates(
    nodes: RayNodes, grid: LocalGrid, versions: int
) -> tuple[float, float, float]:
    """Return milliseconds an update of this process, the actors and all others."""
    contents = [content_of(MEGABYTE, float(n)) for n in range(versions)]
    grid_rate(grid, contents, 50)
    idle = _cpu_of(nodes, lambda: time.sleep(_IDLE_SECONDS))
    start = time.perf_counter()
    busy = _cpu_of(nodes, lambda: grid_rate(grid, contents, UPDATES))
    share = (time.perf_counter() - start) / _IDLE_SECONDS
    driver, actors, others = (
        1e3 * max(0.0, used - share * unused) / UPDATES
        for used, unused in zip(busy, idle, strict=True)
    )
    return driver, actors, others


def _cpu_of(
    nodes: RayNodes, action: Callable[[], object]
) -> tuple[float, float, float]:
    before = _cpu_seconds(nodes)
    action()
    after = _cpu_seconds(nodes)
    driver, actors, others = (b - a for a, b in zip(before, after, strict=True))
    return driver, actors, others


def _cpu_seconds(nodes: RayNodes) -> tuple[float, float, float]:
    actors = {process.pid for node in nodes.nodes for process in node.actors}
    sums = [0.0, 0.0]
    for node in nodes.nodes:
        for process in node.family:
            with suppress(psutil.NoSuchProcess):
                sums[process.pid not in actors] += sum(process.cpu_times()[:2])
    return time.process_time(), sums[0], sums[1]


if __name__ == "__main__":
    end_with_signals()
    show({"ray": ray_figures})
