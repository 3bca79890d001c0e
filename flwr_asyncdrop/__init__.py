"""Asynchronous federated learning for Flower, with submodels that are really smaller.

A ServerApp swaps its strategy, and a ClientApp changes one line::

    strategy = HeteroAsyncDrop(Net(), torch.zeros(1, 3, 32, 32))  # server
    load_submodel(model, message.content["arrays"])  # client

Each name is imported when it is first used: the package itself imports neither
PyTorch nor Flower.

"The paper" of docstrings, with Alg. 1 to 3, is C. Dun, M. Hipolito, C. Jermaine, D.
Dimitriadis and A. Kyrillidis, *Efficient and Light-Weight Federated Learning via
Asynchronous Distributed Dropout*, AISTATS 2023.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr_asyncdrop.checkpoint import Checkpointer
    from flwr_asyncdrop.client import (
        CapacityMod,
        CodecMod,
        FrozenMod,
        load_lora,
        load_personal,
        load_submodel,
        lora_state,
        save_personal,
    )
    from flwr_asyncdrop.fleet import DeviceProfile, speed_levels
    from flwr_asyncdrop.fleet.faults import FaultPolicy
    from flwr_asyncdrop.server.callbacks import Callback
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
    "Callback",
    "CapacityMod",
    "Checkpointer",
    "CodecMod",
    "DeviceProfile",
    "FaultPolicy",
    "FedBuff",
    "FedBuffWait",
    "FrozenMod",
    "HeteroAsyncDrop",
    "LayerwiseAsyncDrop",
    "LocalGrid",
    "StepDecay",
    "SyncFedAvg",
    "load_lora",
    "load_personal",
    "load_submodel",
    "lora_state",
    "save_personal",
    "speed_levels",
]

# All that stands in none of these is one of the named strategies.
_HOMES = {
    "AsyncStrategy": "flwr_asyncdrop.strategy.async_strategy",
    "Callback": "flwr_asyncdrop.server.callbacks",
    "CapacityMod": "flwr_asyncdrop.client",
    "CodecMod": "flwr_asyncdrop.client",
    "Checkpointer": "flwr_asyncdrop.checkpoint",
    "DeviceProfile": "flwr_asyncdrop.fleet",
    "FaultPolicy": "flwr_asyncdrop.fleet.faults",
    "FrozenMod": "flwr_asyncdrop.client",
    "LocalGrid": "flwr_asyncdrop.simulation",
    "StepDecay": "flwr_asyncdrop.server.schedule",
    "load_lora": "flwr_asyncdrop.client",
    "load_personal": "flwr_asyncdrop.client",
    "load_submodel": "flwr_asyncdrop.client",
    "lora_state": "flwr_asyncdrop.client",
    "save_personal": "flwr_asyncdrop.client",
    "speed_levels": "flwr_asyncdrop.fleet",
}
_NAMED = "flwr_asyncdrop.strategy.named"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, _NAMED)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
