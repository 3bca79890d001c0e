"""A run in which everything happens that can be seen from outside."""

from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop.fleet.capacity import Capacity
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.prometheus import PrometheusMetrics
from flwr_asyncdrop.server.callbacks import Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply
from tests.observers.orders import order_of

__all__ = ["PlayedRun"]

TIERS = 4


class PlayedRun:
    """Four tiers, one device each; the last one fails now and then."""

    def __init__(self) -> None:
        self.metrics = PrometheusMetrics(0, run={"algorithm": "played"})
        self.state = RunState.start_from({}, seed=0)
        self.fleet = Fleet(TIERS)
        self.fleet.refresh(range(TIERS))
        self.fleet.devices.seconds = [1.0, 2.0, 3.0, 4.0]
        self.fleet.devices.capacities = {
            rank: Capacity(train_seconds=0.5, memory=1e9, bandwidth=1e6)
            for rank in range(TIERS)
        }

    def __enter__(self) -> "PlayedRun":
        self.metrics.on_fleet(self.fleet)
        self.metrics.on_start(self.state)
        return self

    def __exit__(self, *_: object) -> None:
        self.metrics.on_end(self.state)

    def go_on(self) -> None:
        """Play one task of every device, and an evaluation."""
        state, metrics = self.state, self.metrics
        for rank in range(TIERS):
            order = order_of(rank, TIERS, device=rank, dispatched_at=state.time)
            state.bytes_down += 1000
            state.in_flight[str(rank)] = order
            metrics.on_dispatch(state, order)
            state.time += 0.25 * (rank + 1)
            state.bytes_up += 900
            if rank == TIERS - 1 and state.updates % 2:
                state.failures["shape"] = state.failures.get("shape", 0) + 1
                self.fleet.readiness.failures_in_a_row[rank] = 1
                metrics.on_failure(state, order, "shape", "narrower")
                continue
            state.updates += 1
            state.version += 1
            metrics.on_step(state, {"correlation": 0.1 * rank})
            reply = Reply({}, 1, RecordDict(), 900)
            late = rank == 2
            merged = Merged(order, reply, rank + 1, 1, late, queued=1)
            metrics.on_update(state, merged)
        metrics.on_round(state, state.updates // TIERS)
        for source in ("server", "clients"):
            record = MetricRecord({"loss": 1 / state.updates, "accuracy": 0.5})
            metrics.on_evaluation(state, Evaluation(source, 1, 1, 0.0, record))
