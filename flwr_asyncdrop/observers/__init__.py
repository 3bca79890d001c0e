"""Callbacks that watch a run: history, progress, results, metrics, trackers."""

from flwr_asyncdrop.observers.tracing import OpenTelemetryTracing
from flwr_asyncdrop.observers.trackers import (
    MlflowTracker,
    TensorBoardTracker,
    WandbTracker,
)

__all__ = [
    "MlflowTracker",
    "OpenTelemetryTracing",
    "TensorBoardTracker",
    "WandbTracker",
]
