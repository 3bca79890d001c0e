"""The metrics of a run as Prometheus reads them."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from threading import Lock
from typing import Any, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from flwr_asyncdrop.exceptions import ReplyKind
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.prometheus.tallies import Tallies
from flwr_asyncdrop.observers.speed_groups import MOST_GROUPS, speed_group
from flwr_asyncdrop.server.callbacks import LossKind
from flwr_asyncdrop.server.state import RunState

_COUNTERS = {
    "tasks": "Tasks sent to devices",
    "updates": "Updates merged",
    "late_updates": "Updates merged after their deadline",
    "sent_bytes": "Bytes of weights sent",
    "received_bytes": "Bytes of weights received",
    "queued_staleness_versions": (
        "Staleness that came while tasks waited on their devices, behind others"
    ),
}
_HISTOGRAMS = {
    "staleness_versions": "Versions of the model between dispatch and merge",
    "task_duration_seconds": "From dispatch to merge, on the run's clock",
}
_REASONS: tuple[str, ...] = (*get_args(ReplyKind), *get_args(LossKind))
_NO_TASK = "Devices that get no task for now"
# Attributes of the state.
_TASKS = {
    "in_flight": "Tasks in flight",
    "late": "Tasks past their deadline",
    "waiting": "Updates whose devices wait for the others of their step",
}


class RunCollector(Collector):
    """Yields all metrics of a run.

    It runs on a thread of the HTTP server, beside the loop's thread: it copies the
    tallies under their lock, and each thing that it needs of the state and the fleet
    in one step of the interpreter. It changes nothing.
    """

    def __init__(
        self,
        state: RunState,
        fleet: Fleet,
        tallies: Tallies,
        lock: Lock,
        *,
        info: dict[str, str],
        devices_up_to: int,
    ) -> None:
        self._state = state
        self._fleet = fleet
        self._tallies = tallies
        self._lock = lock
        self._info = info
        self._devices_up_to = devices_up_to
        self._groups = range(min(MOST_GROUPS, fleet.num_ranks))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        with self._lock:
            tallies = deepcopy(self._tallies)
        yield InfoMetricFamily("asyncdrop_run", "The run and its versions", self._info)
        yield from self._of_the_run(tallies)
        yield from self._of_evaluations(tallies)
        yield from self._of_steps(tallies)
        yield from self._by_speed_group(tallies)
        if len(self._fleet) <= self._devices_up_to:
            yield from self._of_each_device(tallies)

    def _of_the_run(self, tallies: Tallies) -> Iterator[Metric]:
        state, fleet = self._state, self._fleet
        readiness = fleet.readiness
        quarantined = readiness.quarantined(state.time)
        probing, too_small = readiness.probing(state.time), len(readiness.too_small)
        for name, says, value in (
            ("clock_seconds", "The run's clock", state.time),
            ("model_version", "Times that the model has changed", state.version),
            ("round", "The last round that is complete", tallies.round),
            ("learning_rate_factor", "The schedule's factor", tallies.lr_factor),
            ("known_devices", "Devices seen so far", len(fleet)),
            ("connected_devices", "Devices that are connected", len(fleet.present)),
            (
                "quarantined_devices",
                f"{_NO_TASK}, after failures in a row",
                quarantined,
            ),
            ("probing_devices", f"{_NO_TASK}, until they report capacity", probing),
            ("too_small_devices", f"{_NO_TASK}, for want of RAM", too_small),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"asyncdrop_{name}", says, value)
        says = "Replies that came a second time"
        name = "asyncdrop_duplicate_replies"
        yield CounterMetricFamily(name, says, state.duplicates)
        # All reasons from the start: Prometheus sees no rise to a first value.
        lost = dict.fromkeys(_REASONS, 0) | tallies.by_label("failures")
        yield _counter("failures", "Tasks lost", "reason", lost)

    def _of_evaluations(self, tallies: Tallies) -> Iterator[Metric]:
        says = "The round of that model"
        yield _gauge("evaluation_round", says, "source", tallies.evaluated)
        says = "What the last evaluation of the global model found"
        labels = ["source", "metric"]
        found = GaugeMetricFamily("asyncdrop_evaluation", says, labels=labels)
        for names, value in tallies.evaluations.items():
            if value is not None:
                found.add_metric(names, value)
        yield found

    def _of_steps(self, tallies: Tallies) -> Iterator[Metric]:
        says = "What the aggregator says of its last step"
        said = {name: v for name, v in tallies.step.items() if v is not None}
        yield _gauge("aggregator", says, "metric", said)

    def _by_speed_group(self, tallies: Tallies) -> Iterator[Metric]:
        for name, says in _COUNTERS.items():
            counts = {group: tallies.counts[name, group] for group in self._groups}
            yield _counter(name, says, "tier", counts)
        for name, says in _HISTOGRAMS.items():
            full = f"asyncdrop_{name}"
            histogram = HistogramMetricFamily(full, says, labels=["tier"])
            for group in self._groups:
                buckets = tallies.up_to_each_bound(name, group)
                histogram.add_metric([str(group)], buckets, tallies.sums[name, group])
            yield histogram
        for name, says in _TASKS.items():
            orders = getattr(self._state, name).copy()
            tasks = orders.values() if isinstance(orders, dict) else orders
            found = Counter(speed_group(order, MOST_GROUPS) for order in tasks)
            by_group = {group: found[group] for group in self._groups}
            yield _gauge(f"{name}_tasks", says, "tier", by_group)

    def _of_each_device(self, tallies: Tallies) -> Iterator[Metric]:
        fleet = self._fleet
        failures = fleet.readiness.failures_in_a_row
        known = fleet.devices.capacities.copy()
        down = {d: c.bytes_per_second_down for d, c in known.items()}
        up = {d: c.bytes_per_second_up for d, c in known.items()}
        train = {d: c.train_seconds for d, c in known.items()}
        memory = {d: c.memory for d, c in known.items()}
        failed = {d: failures.get(d, 0) for d in range(len(fleet))}
        full: dict[int, float] = dict(enumerate(fleet.devices.seconds.copy()))
        for name, says, values in (
            ("full_task_seconds", "Full model, from dispatch to reply", full),
            ("train_seconds", "Full model, the local steps alone", train),
            ("down_bytes_per_second", "Declared or measured bandwidth to it", down),
            ("up_bytes_per_second", "Declared or measured bandwidth from it", up),
            ("memory_bytes", "RAM that training may take on it", memory),
            ("failures_in_a_row", "Tasks failed since its last success", failed),
        ):
            yield _gauge(f"device_{name}", says, "device", values)
        merged = dict.fromkeys(failed, 0) | tallies.by_label("device_updates")
        yield _counter("device_updates", "Updates merged", "device", merged)


def _gauge(name: str, says: str, label: str, values: Mapping[Any, float]) -> Metric:
    """Return a gauge with the values that are known, by label; infinity is not."""
    gauge = GaugeMetricFamily(f"asyncdrop_{name}", says, labels=[label])
    for key, value in values.items():
        if math.isfinite(value):
            gauge.add_metric([str(key)], value)
    return gauge


def _counter(name: str, says: str, label: str, values: Mapping[Any, int]) -> Metric:
    counter = CounterMetricFamily(f"asyncdrop_{name}", says, labels=[label])
    for key, value in values.items():
        counter.add_metric([str(key)], value)
    return counter
