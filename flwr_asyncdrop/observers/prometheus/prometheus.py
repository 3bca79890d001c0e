"""A run as Prometheus sees it."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.prometheus.tallies import Tallies
from flwr_asyncdrop.observers.speed_groups import MOST_GROUPS, speed_group
from flwr_asyncdrop.parameters import in_interval, whole_from
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.versions import version_of

_MOST_EVALUATED = 32
_MOST_OF_A_STEP = 32


class PrometheusMetrics(Callback):
    """Serves the metrics of a run over HTTP, for Prometheus, during the run.

    ``docs/monitoring.md`` lists them. Counters begin at 0 with every process, as
    those of Prometheus do. The port is open from the first task to the last; it has
    no password and no TLS.

    Parameters
    ----------
    port : int
        TCP port; 0 for any that is free. The attribute is the one that it listens on.
    address : str
        Address to listen on; by default only this machine can connect.
    run : mapping of str to str
        What ``asyncdrop_run_info`` says of the run, beside the versions.
    devices_up_to : int
        Most devices for which there are metrics of each of them; 0 for never.

    Raises
    ------
    MissingExtraError
        If prometheus-client is not installed.
    ConfigError
        If a value is out of range, or, when the run starts, the port cannot be opened.
    """

    def __init__(
        self,
        port: int,
        address: str = "127.0.0.1",
        *,
        run: Mapping[str, str] | None = None,
        devices_up_to: int = 100,
    ) -> None:
        port = in_interval("[0, 65535]").check("port", port)
        devices_up_to = whole_from(0).check("devices_up_to", devices_up_to)
        require("prometheus_client", "monitoring")
        self.port = self._asked = port
        self._address = address
        self._run = dict(run or {})
        self._devices_up_to = devices_up_to
        self._tallies = Tallies()
        self._lock = Lock()
        self._server: Any = None
        self._thread: Any = None
        self._fleet: Fleet
        self._bytes_down = self._bytes_up = 0

    def on_fleet(self, fleet: Fleet) -> None:
        """Get to know the devices."""
        self._fleet = fleet

    def on_start(self, state: RunState) -> None:
        """Open the port; no round is complete, and nothing is evaluated."""
        self._tallies.begin(0)
        self._open(state)

    def on_resume(self, state: RunState) -> None:
        """Open the port; the first update says which round it is."""
        self._tallies.begin(None)
        self._open(state)

    def _open(self, state: RunState) -> None:
        from prometheus_client import (
            CollectorRegistry,
            ProcessCollector,
            start_http_server,
        )

        from flwr_asyncdrop.observers.prometheus.collector import RunCollector

        self._bytes_down, self._bytes_up = state.bytes_down, state.bytes_up
        names = ("flwr-asyncdrop", "flwr", "torch")
        versions = {name.replace("-", "_"): version_of(name) for name in names}
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(
            RunCollector(
                state,
                self._fleet,
                self._tallies,
                self._lock,
                info={**versions, **self._run},
                devices_up_to=self._devices_up_to,
            )
        )
        try:
            server, thread = start_http_server(self._asked, self._address, registry)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or one_line(error)
            raise ConfigError(
                f"metrics-port={self._asked} on {self._address!r} cannot be opened "
                f"({reason}): choose another metrics-port or metrics-address, "
                "or leave them out"
            ) from error
        self._server, self._thread = server, thread
        self.port = server.server_port

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Count the task and its bytes."""
        group = speed_group(order, MOST_GROUPS)
        with self._lock:
            counts = self._tallies.counts
            counts["tasks", group] += 1
            counts["sent_bytes", group] += state.bytes_down - self._bytes_down
            self._tallies.lr_factor = order.lr_factor
        self._bytes_down = state.bytes_down

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Count the update, its bytes, its staleness and the time that it took."""
        order, tallies = merged.order, self._tallies
        group, counts = speed_group(order, MOST_GROUPS), tallies.counts
        seconds = state.time - order.timing.dispatched_at
        with self._lock:
            self._count_received(state, group)
            if tallies.round is None:
                tallies.round = merged.round - 1
            counts["updates", group] += 1
            counts["late_updates", group] += merged.late
            counts["queued_staleness_versions", group] += merged.queued
            counts["device_updates", order.device] += 1
            tallies.observe("staleness_versions", group, merged.staleness)
            tallies.observe("task_duration_seconds", group, seconds)

    def on_step(self, state: RunState, metrics: Mapping[str, float]) -> None:
        """Keep what the aggregator says of the step."""
        with self._lock:
            step = self._tallies.step
            step.update(dict.fromkeys(step))
            for name, value in metrics.items():
                if name in step or len(step) < _MOST_OF_A_STEP:
                    step[name] = value

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Count the failure, and the bytes of a reply that is not merged."""
        with self._lock:
            self._count_received(state, speed_group(order, MOST_GROUPS))
            self._tallies.counts["failures", kind] += 1

    def on_round(self, state: RunState, number: int) -> None:
        """Note the round."""
        self._tallies.round = number

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Keep the numbers that it found."""
        if evaluation.metrics is None:
            return
        with self._lock:
            found = self._tallies.evaluations
            self._tallies.evaluated[evaluation.source] = evaluation.round
            found.update({k: None for k in found if k[0] == evaluation.source})
            for name, value in evaluation.metrics.items():
                # Clients choose the names, and every name is one more time series.
                key = evaluation.source, name
                shown = key in found or len(found) < _MOST_EVALUATED
                if shown and isinstance(value, int | float):
                    found[key] = value

    def on_interrupt(self, state: RunState) -> None:
        """Close the port."""
        self.on_end(state)

    def on_end(self, state: RunState) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def _count_received(self, state: RunState, group: int) -> None:
        arrived = state.bytes_up - self._bytes_up
        self._tallies.counts["received_bytes", group] += arrived
        self._bytes_up = state.bytes_up
