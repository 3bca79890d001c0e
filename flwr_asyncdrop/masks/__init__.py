"""Mask policies: which units a device's submodel keeps."""

from flwr_asyncdrop.masks.fitting import fit
from flwr_asyncdrop.masks.ordered import OrderedMask
from flwr_asyncdrop.masks.policy import FullMask, MaskContext, MaskPolicy
from flwr_asyncdrop.masks.random_mask import RandomMask
from flwr_asyncdrop.masks.rates import DropRate, GradedRate
from flwr_asyncdrop.masks.scores import unit_scores
from flwr_asyncdrop.masks.smart import SmartPartition

__all__ = [
    "DropRate",
    "FullMask",
    "GradedRate",
    "MaskContext",
    "MaskPolicy",
    "OrderedMask",
    "RandomMask",
    "SmartPartition",
    "fit",
    "unit_scores",
]
