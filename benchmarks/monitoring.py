"""What it costs a run to be watched by Prometheus, and traced by OpenTelemetry."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from typing import Any
from urllib.request import urlopen

from flwr.app import RecordDict

from benchmarks.figures import Figure, show
from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.observers.prometheus import PrometheusMetrics
from flwr_asyncdrop.observers.tracing import OpenTelemetryTracing
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.order import Order, Part, Timing
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply

__all__ = ["monitoring_figures"]

RANKS = 16
DEVICES = 100
UPDATES = 20_000
SCRAPES = 50
SPANS = 10_240
# Of what OpenTelemetry sends at a time, and less than it keeps until then
SPANS_AT_A_TIME = 1_024
_MOMENT, _PATIENCE = 0.001, 30.0
ENCODER = "opentelemetry.exporter.otlp.proto.common.trace_encoder"


def monitoring_figures() -> Iterator[Figure]:
    """Time the hooks of an update, and a scrape of as many series as there can be.

    In CPU seconds of this process: what the loop takes from whatever reads or sends.
    """
    updates = cycle([_update_of(device) for device in range(DEVICES)])
    with _watched() as (metrics, state):
        per_update = _cpu_seconds(lambda: _play(metrics, state, next(updates)), UPDATES)
        yield Figure("metrics_us_per_update", per_update * 1e6, 50)
        url = f"http://127.0.0.1:{metrics.port}/metrics"
        per_scrape = _cpu_seconds(lambda: urlopen(url).read(), SCRAPES)
        yield Figure("metrics_ms_per_scrape", per_scrape * 1e3)
    with suppress(MissingExtraError):
        require(ENCODER, "tracing")
        yield Figure("tracing_us_per_update", _seconds_per_span(updates) * 1e6)


class _Encoder:
    """Encodes spans as for a collector, and sends them nowhere."""

    def __init__(self) -> None:
        self.spans = self.bytes = 0

    def export(self, spans: Sequence[Any]) -> object:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.spans += len(spans)
        self.bytes += len(encode_spans(spans).SerializeToString())
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def wait_for(self, spans: int) -> None:
        """Wait until so many have come: one that finds no place is lost."""
        end = time.monotonic() + _PATIENCE
        while self.spans < spans:
            if time.monotonic() > end:
                raise RuntimeError(f"{spans - self.spans} spans are lost")
            time.sleep(_MOMENT)


def _seconds_per_span(updates: Iterator[Merged]) -> float:
    """Time an update until its span is encoded."""
    encoder = _Encoder()
    tracing, state = OpenTelemetryTracing(exporter=encoder), RunState.start_from({}, 0)
    tracing.on_start(state)
    started = time.process_time()
    for number in range(1, SPANS + 1):
        _play(tracing, state, next(updates))
        if number % SPANS_AT_A_TIME == 0:
            encoder.wait_for(number)
    tracing.on_end(state)
    return (time.process_time() - started) / SPANS


@contextmanager
def _watched() -> Iterator[tuple[PrometheusMetrics, RunState]]:
    """Serve a run of as many ranks, and as many devices one by one, as are shown."""
    metrics, fleet = PrometheusMetrics(0), Fleet(RANKS)
    fleet.refresh(range(DEVICES))
    fleet.devices.seconds = [1.0] * DEVICES
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


def _play(observer: Callback, state: RunState, merged: Merged) -> None:
    """Dispatch a task and merge its reply, as far as an observer is told of it."""
    state.bytes_down += 1000
    state.in_flight["message"] = merged.order
    observer.on_dispatch(state, merged.order)
    del state.in_flight["message"]
    state.time += 0.01
    state.bytes_up += 1000
    observer.on_update(state, merged)


def _cpu_seconds(action: Callable[[], object], times: int) -> float:
    action()
    started = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - started) / times


if __name__ == "__main__":
    show({"monitoring": monitoring_figures})
