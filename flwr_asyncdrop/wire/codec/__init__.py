"""Coders of single tensors: numbers become few bytes, and numbers again.

A `Scheme` codes one flat tensor, a `Codec` says which scheme each direction has. They
know nothing of messages. Every decoded number is finite.
"""

from flwr_asyncdrop.wire.codec.blocks import Blocks
from flwr_asyncdrop.wire.codec.presets import PRESETS, Codec, codec
from flwr_asyncdrop.wire.codec.rotated import Rotated
from flwr_asyncdrop.wire.codec.scheme import Scheme
from flwr_asyncdrop.wire.codec.specs import scheme
from flwr_asyncdrop.wire.codec.top_k import TopK

__all__ = ["PRESETS", "Blocks", "Codec", "Rotated", "Scheme", "TopK", "codec", "scheme"]
