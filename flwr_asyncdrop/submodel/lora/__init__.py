"""Adapters: rank components, or whole adapters, as units of a plan.

`lora_plan` finds the adapters of a model and what can be dropped of them, `lora_state`
returns what travels, and `load_lora` narrows the adapters to what arrived.
"""

from flwr_asyncdrop.submodel.lora.flops import LoraFlops
from flwr_asyncdrop.submodel.lora.loading import load_lora
from flwr_asyncdrop.submodel.lora.pairs import Adapter, Pairs, find_adapters
from flwr_asyncdrop.submodel.lora.plan import LoraPlan, LoraUnits, lora_plan
from flwr_asyncdrop.submodel.lora.tensors import lora_state

__all__ = [
    "Adapter",
    "LoraFlops",
    "LoraPlan",
    "LoraUnits",
    "Pairs",
    "find_adapters",
    "load_lora",
    "lora_plan",
    "lora_state",
]
