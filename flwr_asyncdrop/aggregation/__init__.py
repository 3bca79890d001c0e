"""Aggregation: how updates change the global model."""

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.buffered import Buffered
from flwr_asyncdrop.aggregation.mixing import Mixing, mix_
from flwr_asyncdrop.aggregation.remembered import Remembered
from flwr_asyncdrop.aggregation.server_step import average_
from flwr_asyncdrop.aggregation.weighting import WEIGHTINGS, Weighting, weighting

__all__ = [
    "WEIGHTINGS",
    "Aggregator",
    "Buffered",
    "Mixing",
    "Remembered",
    "Update",
    "Weighting",
    "average_",
    "mix_",
    "weighting",
]
