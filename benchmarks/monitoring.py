"""What it costs a run to be watched by Prometheus, with as much to see as there is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from urllib.request import urlopen

from flwr.app import RecordDict

from benchmarks.figures import Figure, show
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.observers.prometheus import PrometheusMetrics
from flwr_asyncdrop.server.callbacks import Merged
from flwr_asyncdrop.server.order import Order, Part, Timing
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply

__all__ = ["monitoring_figures"]

RANKS = 16
DEVICES = 100
UPDATES = 20_000
SCRAPES = 50


def monitoring_figures() -> Iterator[Figure]:
    """Time the hooks of an update, and a scrape of as many series as there can be.

    In CPU seconds of this process: what the loop and the scrapes take from each other.
    """
    updates = cycle([_update_of(device) for device in range(DEVICES)])
    with _watched() as (metrics, state):
        per_update = _cpu_seconds(lambda: _play(metrics, state, next(updates)), UPDATES)
        yield Figure("metrics_us_per_update", per_update * 1e6, 50)
        url = f"http://127.0.0.1:{metrics.port}/metrics"
        per_scrape = _cpu_seconds(lambda: urlopen(url).read(), SCRAPES)
        yield Figure("metrics_ms_per_scrape", per_scrape * 1e3)


@contextmanager
def _watched() -> Iterator[tuple[PrometheusMetrics, RunState]]:
    """Serve a run of as many ranks, and as many devices one by one, as are shown."""
    metrics, fleet = PrometheusMetrics(0), Fleet(RANKS)
    fleet.refresh(range(DEVICES))
    fleet.seconds = [1.0] * DEVICES
    state = RunState.start_from({}, seed=0)
    metrics.on_fleet(fleet)
    metrics.on_start(state)
    try:
        yield metrics, state
    finally:
        metrics.on_end(state)


def _update_of(device: int) -> Merged:
    order = Order(
        number=device,
        device=device,
        node_id=device,
        rank=device % RANKS,
        num_ranks=RANKS,
        round=1,
        base_version=0,
        lr_factor=1.0,
        part=Part(None, {}, {}),
        cost=TaskCost(1.0, 1000, 1000),
        timing=Timing(dispatched_at=0.0, due=1.0),
    )
    return Merged(order, Reply({}, 1, RecordDict(), 1000), staleness=3, round=1)


def _play(metrics: PrometheusMetrics, state: RunState, merged: Merged) -> None:
    """Dispatch a task and merge its reply, as far as the metrics are told of it."""
    state.bytes_down += 1000
    metrics.on_dispatch(state, merged.order)
    state.time += 0.01
    state.bytes_up += 1000
    metrics.on_update(state, merged)


def _cpu_seconds(action: Callable[[], object], times: int) -> float:
    action()
    started = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - started) / times


if __name__ == "__main__":
    show({"monitoring": monitoring_figures})
