"""Local objectives: what a client minimises, and what it sends beside its model."""

from flwr_asyncdrop.objectives.losses import LogitAdjustedLoss, LossFn, Proximal
from flwr_asyncdrop.objectives.objective import (
    LocalObjective,
    LocalSteps,
    LocalTask,
    StandardObjective,
    StandardSteps,
    checked_config,
)

__all__ = [
    "LocalObjective",
    "LocalSteps",
    "LocalTask",
    "LogitAdjustedLoss",
    "LossFn",
    "Proximal",
    "StandardObjective",
    "StandardSteps",
    "checked_config",
]
