"""The algorithms: how updates merge, what is dropped, what is minimised, who trains."""

from flwr_asyncdrop.algorithms.algorithm import Algorithm
from flwr_asyncdrop.algorithms.mixed import (
    AsyncDrop,
    AsyncFedAvg,
    AsyncFedProx,
    AsyncFjord,
    AsyncWeighted,
    HeteroAsyncDrop,
    LayerwiseAsyncDrop,
)
from flwr_asyncdrop.algorithms.registry import ALGORITHMS, algorithm
from flwr_asyncdrop.algorithms.stepped import (
    AsyncDropPlus,
    BufferSized,
    FedAvg,
    FedBuff,
    FedBuffWait,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AsyncDrop",
    "AsyncDropPlus",
    "AsyncFedAvg",
    "AsyncFedProx",
    "AsyncFjord",
    "AsyncWeighted",
    "BufferSized",
    "FedAvg",
    "FedBuff",
    "FedBuffWait",
    "HeteroAsyncDrop",
    "LayerwiseAsyncDrop",
    "algorithm",
]
