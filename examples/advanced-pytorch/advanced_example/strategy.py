"""A strategy with a learning rate schedule, which saves the best model and tracks."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr_asyncdrop import FedBuff

from advanced_example.tracker import Tracker

HALVED_IN = (20, 30)
"""The rounds in which the learning rate is halved."""


class TrackedStrategy(FedBuff):
    """Halves the learning rate twice, saves the best model, and logs all metrics."""

    def __init__(
        self, *args: Any, tracker: Tracker, folder: Path, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.tracker = tracker
        self.folder = folder
        self.best = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Follow the schedule."""
        if server_round in HALVED_IN:
            config["lr"] = config["lr"] * 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Log what the nodes say of their training."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.tracker.log(server_round, dict(metrics or {}))
        return arrays, metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Log what the nodes measure, each with the head of its own."""
        metrics = super().aggregate_evaluate(server_round, replies)
        self.tracker.log(server_round, dict(metrics or {}))
        return metrics

    def start(
        self,
        *args: Any,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord],
        **kwargs: Any,
    ) -> Result:
        """Save the best model by the server's evaluation, which is logged too."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            metrics = evaluate_fn(server_round, arrays)
            self.tracker.log(server_round, dict(metrics))
            if metrics["accuracy"] > self.best:
                self.best = metrics["accuracy"]
                torch.save(arrays.to_torch_state_dict(), self.folder / "best.pt")
            return metrics

        return super().start(*args, evaluate_fn=evaluate, **kwargs)
