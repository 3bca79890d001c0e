"""A run as Prometheus sees it."""

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.speed_groups import speed_group
from flwr_asyncdrop.ranges import check_ranges
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import Order, RunState

if TYPE_CHECKING:
    from flwr_asyncdrop.observers.prometheus.endpoint import Endpoint

_MOST_TIERS = 16
_MOST_EVALUATED = 32


class PrometheusMetrics(Callback):
    """Serves the metrics of a run over HTTP, for Prometheus, while the run goes on.

    ``docs/monitoring.md`` lists them. Counters begin at 0 with every process, as
    those of Prometheus do. The port is open from the first task to the last; it has
    no password and no TLS.

    Parameters
    ----------
    port : int
        TCP port; 0 for any that is free.
    address : str
        Address to listen on; by default only this machine can connect.
    run : mapping of str to str
        What ``asyncdrop_run_info`` says of the run, beside the versions.
    devices_up_to : int
        Most devices for which there are metrics of each of them; 0 for never.

    Attributes
    ----------
    port : int
        The port that it listens on, while it does.

    Raises
    ------
    ConfigError
        If prometheus-client is not installed, a value is out of range, or, when the
        run starts, the port cannot be opened.
    """

    def __init__(
        self,
        port: int,
        address: str = "127.0.0.1",
        *,
        run: Mapping[str, str] | None = None,
        devices_up_to: int = 100,
    ) -> None:
        check_ranges(
            ("port", port, 0 <= port <= 65535, "in [0, 65535]"),
            ("devices_up_to", devices_up_to, devices_up_to >= 0, "at least 0"),
        )
        try:
            from flwr_asyncdrop.observers.prometheus.instruments import Instruments
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"metrics on port {port} need {error.name}: "
                'pip install "flwr-asyncdrop[monitoring]", or leave metrics-port out'
            ) from error
        self.port = port
        self._address = address
        self._run = dict(run or {})
        self._devices_up_to = devices_up_to
        self._instruments = Instruments()
        self._endpoint: Endpoint | None = None
        self._fleet: Fleet
        self._device_updates: Counter[int] = Counter()
        self._evaluated: set[tuple[str, str]] = set()
        self._bytes_down = self._bytes_up = 0

    def on_fleet(self, fleet: Fleet) -> None:
        """Get to know the devices."""
        self._fleet = fleet

    def on_start(self, state: RunState) -> None:
        """Open the port."""
        from flwr_asyncdrop.observers.prometheus.endpoint import Endpoint
        from flwr_asyncdrop.observers.prometheus.snapshot import Snapshot

        self._bytes_down, self._bytes_up = state.bytes_down, state.bytes_up
        versions = {
            name.replace("-", "_"): version(name)
            for name in ("flwr-asyncdrop", "flwr", "torch")
        }
        self._instruments.run.info({**versions, **self._run})
        self._instruments.expect_tiers(min(_MOST_TIERS, self._fleet.num_ranks))
        snapshot = Snapshot(
            state,
            self._fleet,
            self._device_updates,
            most_tiers=_MOST_TIERS,
            devices_up_to=self._devices_up_to,
        )
        self._endpoint = Endpoint(
            self.port, self._address, self._instruments.registry, snapshot
        )
        self.port = self._endpoint.port

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Count the task and its bytes."""
        tier, instruments = speed_group(order, _MOST_TIERS), self._instruments
        instruments.tasks.labels(tier).inc()
        instruments.sent.labels(tier).inc(state.bytes_down - self._bytes_down)
        instruments.lr_factor.set(order.lr_factor)
        self._bytes_down = state.bytes_down

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Count the update, its bytes, its staleness and the time that it took."""
        order, instruments = merged.order, self._instruments
        tier = speed_group(order, _MOST_TIERS)
        self._received(state, tier)
        self._device_updates[order.device] += 1
        instruments.updates.labels(tier).inc()
        if merged.late:
            instruments.late_updates.labels(tier).inc()
        instruments.staleness.labels(tier).observe(merged.staleness)
        if merged.queued:
            instruments.queued.labels(tier).inc(merged.queued)
        instruments.task_seconds.labels(tier).observe(state.time - order.dispatched_at)

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Count the failure, and the bytes of a reply that is not merged."""
        self._received(state, speed_group(order, _MOST_TIERS))
        self._instruments.failures.labels(kind).inc()

    def on_round(self, state: RunState, number: int) -> None:
        """Note the round."""
        self._instruments.round.set(number)

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Keep the numbers that it found."""
        if evaluation.metrics is None:
            return
        source, instruments = evaluation.source, self._instruments
        instruments.evaluated_round.labels(source).set(evaluation.round)
        for name, value in evaluation.metrics.items():
            # Clients choose the names, and every name is one more time series.
            known = (source, name) in self._evaluated
            if not known and len(self._evaluated) == _MOST_EVALUATED:
                continue
            if isinstance(value, int | float):
                self._evaluated.add((source, name))
                instruments.evaluation.labels(source, name).set(value)

    def on_interrupt(self, state: RunState) -> None:
        """Close the port."""
        self._close()

    def on_end(self, state: RunState) -> None:
        """Close the port."""
        self._close()

    def _received(self, state: RunState, tier: int) -> None:
        if arrived := state.bytes_up - self._bytes_up:
            self._instruments.received.labels(tier).inc(arrived)
            self._bytes_up = state.bytes_up

    def _close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
