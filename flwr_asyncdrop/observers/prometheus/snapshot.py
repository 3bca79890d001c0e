"""What is so at the moment at which Prometheus asks."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.speed_groups import speed_group
from flwr_asyncdrop.server.state import Order, RunState

_DEVICE = ["device"]

_DEVICE_GAUGES: tuple[tuple[str, str, Callable[[Fleet], Mapping[int, float]]], ...] = (
    (
        "full_task_seconds",
        "What a task with the full model takes on it, from dispatch to reply",
        lambda fleet: dict(enumerate(fleet.seconds.copy())),
    ),
    (
        "train_seconds",
        "What the local steps of a task with the full model take on it",
        lambda fleet: _known(fleet, "train_seconds"),
    ),
    (
        "down_bytes_per_second",
        "Bandwidth to it, declared or measured",
        lambda fleet: _known(fleet, "bytes_per_second_down"),
    ),
    (
        "up_bytes_per_second",
        "Bandwidth from it, declared or measured",
        lambda fleet: _known(fleet, "bytes_per_second_up"),
    ),
    (
        "memory_bytes",
        "Memory that training may take on it",
        lambda fleet: _known(fleet, "memory"),
    ),
    (
        "failures_in_a_row",
        "Tasks that it has failed since its last success",
        lambda fleet: {d: fleet.failures_in_a_row.get(d, 0) for d in range(len(fleet))},
    ),
)
"""What is known of each device: name, meaning, and the values by device."""


class Snapshot(Collector):
    """Reads the state of the run and its fleet when it is asked to, and never else.

    It is asked on a thread of the HTTP server while the loop's thread goes on: it
    takes copies of what changes, each in one step of the interpreter, and calls
    nothing that changes anything.

    Parameters
    ----------
    state : RunState
        The state of the run.
    fleet : Fleet
        Its devices.
    device_updates : Counter of int
        Updates merged, by device.
    most_tiers : int
        Speed tiers that there are at most.
    devices_up_to : int
        Most devices for which there are metrics of each of them.
    """

    def __init__(
        self,
        state: RunState,
        fleet: Fleet,
        device_updates: Counter[int],
        *,
        most_tiers: int,
        devices_up_to: int,
    ) -> None:
        self._state = state
        self._fleet = fleet
        self._device_updates = device_updates
        self._most_tiers = most_tiers
        self._devices_up_to = devices_up_to

    def collect(self) -> Iterator[Metric]:
        """Return all that is so now."""
        yield from self._of_the_run()
        yield from self._of_the_tasks()
        if len(self._fleet) <= self._devices_up_to:
            yield from self._of_each_device()

    def _of_the_run(self) -> Iterator[Metric]:
        state, fleet = self._state, self._fleet
        for name, says, value in (
            ("clock_seconds", "The run's clock", state.time),
            ("model_version", "Times that the model has changed", state.version),
            ("known_devices", "Devices seen so far", len(fleet)),
            ("connected_devices", "Devices that are connected", len(fleet.present)),
            (
                "quarantined_devices",
                "Devices that get no task for now",
                fleet.quarantined(state.time),
            ),
        ):
            yield GaugeMetricFamily(f"asyncdrop_{name}", says, value)
        yield CounterMetricFamily(
            "asyncdrop_duplicate_replies",
            "Replies that came a second time",
            state.duplicates,
        )

    def _of_the_tasks(self) -> Iterator[Metric]:
        state = self._state
        yield self._by_tier(
            "in_flight_tasks", "Tasks in flight", state.in_flight.copy().values()
        )
        yield self._by_tier(
            "late_tasks", "Tasks past their deadline", state.late.copy().values()
        )
        yield self._by_tier(
            "waiting_tasks",
            "Updates whose devices wait for the others of their step",
            state.waiting.copy(),
        )

    def _by_tier(self, name: str, says: str, orders: Iterable[Order]) -> Metric:
        tiers = min(self._fleet.num_ranks, self._most_tiers)
        counts = Counter(speed_group(order, self._most_tiers) for order in orders)
        metric = GaugeMetricFamily(f"asyncdrop_{name}", says, labels=["tier"])
        for tier in range(tiers):
            metric.add_metric([str(tier)], counts[tier])
        return metric

    def _of_each_device(self) -> Iterator[Metric]:
        for name, says, read in _DEVICE_GAUGES:
            gauge = GaugeMetricFamily(f"asyncdrop_device_{name}", says, labels=_DEVICE)
            yield _by_device(gauge, read(self._fleet))
        yield _by_device(
            CounterMetricFamily(
                "asyncdrop_device_updates", "Updates merged", labels=_DEVICE
            ),
            self._device_updates.copy(),
        )


def _known(fleet: Fleet, name: str) -> dict[int, float]:
    """Return what real devices report of themselves, or was measured of them."""
    capacities = fleet.capacities.copy()
    return {device: getattr(known, name) for device, known in capacities.items()}


def _by_device(
    metric: GaugeMetricFamily | CounterMetricFamily, values: Mapping[int, float]
) -> Metric:
    """Give a metric the values that are known; infinity is not."""
    for device, value in values.items():
        if math.isfinite(value):
            metric.add_metric([str(device)], value)
    return metric
