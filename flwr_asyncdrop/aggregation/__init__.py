"""Aggregation: how updates change the global model."""

from flwr_asyncdrop.aggregation.adaptive_per_group import AdaptivePerGroup
from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.buffered import Buffered
from flwr_asyncdrop.aggregation.changes import Change, change_of, is_weight, mean_change
from flwr_asyncdrop.aggregation.clipping import Clipped, clip_update
from flwr_asyncdrop.aggregation.combining import COMBINATIONS, Combiner, combiner
from flwr_asyncdrop.aggregation.counters import check_counters
from flwr_asyncdrop.aggregation.latest_per_group import NUM_GROUPS, LatestPerGroup
from flwr_asyncdrop.aggregation.mixing import Mixing, mix_
from flwr_asyncdrop.aggregation.outliers import (
    OUTLIER_FACTOR,
    OUTLIER_FACTORS,
    OutlierGuard,
)
from flwr_asyncdrop.aggregation.product_buffered import ProductBuffered
from flwr_asyncdrop.aggregation.product_mixing import ProductMixing
from flwr_asyncdrop.aggregation.server_step import average_, room_for_average
from flwr_asyncdrop.aggregation.weighting import (
    WEIGHTINGS,
    Weighting,
    has_parameter,
    weighting,
)

__all__ = [
    "COMBINATIONS",
    "NUM_GROUPS",
    "OUTLIER_FACTOR",
    "OUTLIER_FACTORS",
    "WEIGHTINGS",
    "AdaptivePerGroup",
    "Aggregator",
    "Buffered",
    "Change",
    "Clipped",
    "Combiner",
    "LatestPerGroup",
    "Mixing",
    "OutlierGuard",
    "ProductBuffered",
    "ProductMixing",
    "Update",
    "Weighting",
    "average_",
    "change_of",
    "check_counters",
    "clip_update",
    "combiner",
    "has_parameter",
    "is_weight",
    "mean_change",
    "mix_",
    "room_for_average",
    "weighting",
]
