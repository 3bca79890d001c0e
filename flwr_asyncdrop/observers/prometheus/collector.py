"""What Prometheus gets when it asks."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from threading import Lock

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.prometheus.tallies import MOST_GROUPS, Tallies
from flwr_asyncdrop.observers.speed_groups import speed_group
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

_COUNTERS = {
    "tasks": "Tasks sent to devices",
    "updates": "Updates merged",
    "late_updates": "Updates merged after their deadline",
    "sent_bytes": "Bytes of weights sent",
    "received_bytes": "Bytes of weights received",
    "queued_staleness_versions": "Staleness that came while tasks waited on their "
    "devices, behind others",
}
_HISTOGRAMS = {
    "staleness_versions": "Versions of the model between dispatch and merge",
    "task_duration_seconds": "From dispatch to merge, on the run's clock",
}
_CAPACITIES = {
    "train_seconds": (
        "train_seconds",
        "What the local steps of a task with the full model take on it",
    ),
    "down_bytes_per_second": (
        "bytes_per_second_down",
        "Bandwidth to it, declared or measured",
    ),
    "up_bytes_per_second": (
        "bytes_per_second_up",
        "Bandwidth from it, declared or measured",
    ),
    "memory_bytes": ("memory", "Memory that training may take on it"),
}
"""What real devices report of themselves, or was measured of them: the attribute of
`Capacity`, and what it means."""


class RunCollector(Collector):
    """Yields all metrics of a run when it is asked to, and never else.

    It is asked on a thread of the HTTP server while the loop's thread goes on: it
    copies the tallies under their lock, and what it needs of the state and the fleet
    in one step of the interpreter each; it changes nothing.
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
        # All of them from the start: Prometheus sees no rise to a first value.
        self._groups = range(min(MOST_GROUPS, fleet.num_ranks))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        with self._lock:
            tallies = deepcopy(self._tallies)
        yield InfoMetricFamily("asyncdrop_run", "The run and its versions", self._info)
        yield from self._of_the_run(tallies)
        yield from self._by_speed_group(tallies)
        yield from self._tasks_now()
        if len(self._fleet) <= self._devices_up_to:
            yield from self._of_each_device(tallies)

    def _of_the_run(self, tallies: Tallies) -> Iterator[Metric]:
        state, fleet = self._state, self._fleet
        for name, says, value in (
            ("clock_seconds", "The run's clock", state.time),
            ("model_version", "Times that the model has changed", state.version),
            ("round", "The last round that is complete", tallies.round),
            (
                "learning_rate_factor",
                "What the schedule has made of the learning rate",
                tallies.lr_factor,
            ),
            ("known_devices", "Devices seen so far", len(fleet)),
            ("connected_devices", "Devices that are connected", len(fleet.present)),
            (
                "quarantined_devices",
                "Devices that get no task for now, as they failed too often in a row",
                fleet.quarantined(state.time),
            ),
            (
                "probing_devices",
                "Devices that get no task until they have said what they can do",
                fleet.probing(state.time),
            ),
            (
                "too_small_devices",
                "Devices without the memory for even the smallest submodel",
                len(fleet.too_small),
            ),
        ):
            yield GaugeMetricFamily(f"asyncdrop_{name}", says, value)
        duplicates = "Replies that came a second time"
        yield CounterMetricFamily(
            "asyncdrop_duplicate_replies", duplicates, state.duplicates
        )
        reasons = _labelled(tallies, "failures")
        yield _family(CounterMetricFamily, "failures", "Tasks lost", "reason", reasons)
        says = "The round of that model"
        rounds = tallies.evaluated
        yield _family(GaugeMetricFamily, "evaluation_round", says, "source", rounds)
        says = "What the last evaluation of the global model found"
        labels = ["source", "metric"]
        found = GaugeMetricFamily("asyncdrop_evaluation", says, labels=labels)
        for names, value in tallies.evaluations.items():
            found.add_metric(names, value)
        yield found

    def _by_speed_group(self, tallies: Tallies) -> Iterator[Metric]:
        for name, says in _COUNTERS.items():
            values = {group: tallies.counts[name, group] for group in self._groups}
            yield _family(CounterMetricFamily, name, says, "tier", values)
        for name, says in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(
                f"asyncdrop_{name}", says, labels=["tier"]
            )
            for group in self._groups:
                buckets = tallies.up_to_each_bound(name, group)
                histogram.add_metric([str(group)], buckets, tallies.sums[name, group])
            yield histogram

    def _tasks_now(self) -> Iterator[Metric]:
        state = self._state
        waits = "Updates whose devices wait for the others of their step"
        rows: tuple[tuple[str, str, Iterable[Order]], ...] = (
            ("in_flight", "Tasks in flight", state.in_flight.copy().values()),
            ("late", "Tasks past their deadline", state.late.copy().values()),
            ("waiting", waits, state.waiting.copy()),
        )
        for name, says, orders in rows:
            counts = Counter(speed_group(order, MOST_GROUPS) for order in orders)
            values = {group: counts[group] for group in self._groups}
            yield _family(GaugeMetricFamily, f"{name}_tasks", says, "tier", values)

    def _of_each_device(self, tallies: Tallies) -> Iterator[Metric]:
        fleet = self._fleet
        failures, capacities = fleet.failures_in_a_row, fleet.capacities.copy()
        rows: list[tuple[str, str, Mapping[int, float]]] = [
            (
                "full_task_seconds",
                "What a task with the full model takes on it, from dispatch to reply",
                dict(enumerate(fleet.seconds.copy())),
            ),
            (
                "failures_in_a_row",
                "Tasks that it has failed since its last success",
                {device: failures.get(device, 0) for device in range(len(fleet))},
            ),
        ]
        for name, (attribute, says) in _CAPACITIES.items():
            known = {device: getattr(c, attribute) for device, c in capacities.items()}
            rows.append((name, says, known))
        for name, says, values in rows:
            yield _family(GaugeMetricFamily, f"device_{name}", says, "device", values)
        merged = _labelled(tallies, "device_updates")
        says = "Updates merged"
        yield _family(CounterMetricFamily, "device_updates", says, "device", merged)


def _labelled(tallies: Tallies, name: str) -> dict[object, int]:
    """Return the counts of one metric by label."""
    return {
        label: count
        for (metric, label), count in tallies.counts.items()
        if metric == name
    }


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    says: str,
    label: str,
    values: Mapping[object, float] | Mapping[int, float] | Mapping[str, float],
) -> Metric:
    """Return a metric with the values that are known, by label; infinity is not."""
    family = kind(f"asyncdrop_{name}", says, labels=[label])
    for key, value in values.items():
        if math.isfinite(value):
            family.add_metric([str(key)], value)
    return family
