"""Aggregation: how updates change the global model."""

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.buffered import Buffered
from flwr_asyncdrop.aggregation.clipping import Clipped, clip_update
from flwr_asyncdrop.aggregation.combining import COMBINATIONS, Combiner, combiner
from flwr_asyncdrop.aggregation.latest_per_group import NUM_GROUPS, LatestPerGroup
from flwr_asyncdrop.aggregation.mixing import Mixing, mix_
from flwr_asyncdrop.aggregation.server_step import average_
from flwr_asyncdrop.aggregation.weighting import WEIGHTINGS, Weighting, weighting

__all__ = [
    "COMBINATIONS",
    "NUM_GROUPS",
    "WEIGHTINGS",
    "Aggregator",
    "Buffered",
    "Clipped",
    "Combiner",
    "LatestPerGroup",
    "Mixing",
    "Update",
    "Weighting",
    "average_",
    "clip_update",
    "combiner",
    "mix_",
    "weighting",
]
