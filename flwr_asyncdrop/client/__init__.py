"""The client's side: loading what a task brings, layers of its own, and its mods."""

from flwr_asyncdrop.client.capacity import CapacityMod
from flwr_asyncdrop.client.codec_mod import CodecMod
from flwr_asyncdrop.client.frozen import FrozenMod
from flwr_asyncdrop.client.loading import load_submodel
from flwr_asyncdrop.client.lora import load_lora
from flwr_asyncdrop.client.personal import load_personal, save_personal
from flwr_asyncdrop.submodel import lora_state
from flwr_asyncdrop.wire import traceparent

__all__ = [
    "CapacityMod",
    "CodecMod",
    "FrozenMod",
    "load_lora",
    "load_personal",
    "load_submodel",
    "lora_state",
    "save_personal",
    "traceparent",
]
