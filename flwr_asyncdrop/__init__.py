"""Asynchronous federated learning for Flower, with submodels that are really smaller.

A ServerApp swaps its strategy, and a ClientApp changes one line::

    strategy = HeteroAsyncDrop(Net(), torch.zeros(1, 3, 32, 32))  # server
    model = load_submodel(Net(), message.content["arrays"])  # client
"""

from flwr_asyncdrop.client import CapacityMod, load_submodel
from flwr_asyncdrop.fleet import DeviceProfile, speed_levels
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.simulation import LocalGrid
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy
from flwr_asyncdrop.strategy.named import (
    AsyncDrop,
    AsyncDropPlus,
    AsyncFedAvg,
    AsyncFedProx,
    AsyncFjord,
    AsyncWeighted,
    FedBuff,
    FedBuffWait,
    HeteroAsyncDrop,
    LayerwiseAsyncDrop,
    SyncFedAvg,
)

__all__ = [
    "AsyncDrop",
    "AsyncDropPlus",
    "AsyncFedAvg",
    "AsyncFedProx",
    "AsyncFjord",
    "AsyncStrategy",
    "AsyncWeighted",
    "CapacityMod",
    "DeviceProfile",
    "FedBuff",
    "FedBuffWait",
    "HeteroAsyncDrop",
    "LayerwiseAsyncDrop",
    "LocalGrid",
    "StepDecay",
    "SyncFedAvg",
    "load_submodel",
    "speed_levels",
]
