"""A run in tools that keep and draw runs: each needs an extra of this package."""

from flwr_asyncdrop.observers.trackers.mlflow import MlflowTracker
from flwr_asyncdrop.observers.trackers.tensorboard import TensorBoardTracker
from flwr_asyncdrop.observers.trackers.wandb import WandbTracker

__all__ = ["MlflowTracker", "TensorBoardTracker", "WandbTracker"]
