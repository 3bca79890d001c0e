"""Aggregation: how updates change the global model."""

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.mixing import Mixing, mix_

__all__ = ["Aggregator", "Mixing", "Update", "mix_"]
