"""The run-config of ``flwr run``: its keys, and what they may be."""

from flwr_asyncdrop.app.config.contradictions import (
    DEVICE_KEYS,
    SCOPED,
    has_scope,
    needless,
)
from flwr_asyncdrop.app.config.earlier import earlier_values
from flwr_asyncdrop.app.config.key_table import INCIDENTAL, IRRELEVANT, key_table
from flwr_asyncdrop.app.config.keys import LEFT_OUT, Key, Value
from flwr_asyncdrop.app.config.run_config import RunConfig

__all__ = [
    "DEVICE_KEYS",
    "INCIDENTAL",
    "IRRELEVANT",
    "LEFT_OUT",
    "SCOPED",
    "Key",
    "RunConfig",
    "Value",
    "earlier_values",
    "has_scope",
    "key_table",
    "needless",
]
