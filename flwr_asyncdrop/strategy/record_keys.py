"""Where the project of a strategy keeps its records."""

from typing import Protocol

from flwr_asyncdrop import wire


class NamesKeys(Protocol):
    """A strategy with Flower's arguments for keys."""

    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str


def record_keys(strategy: NamesKeys) -> wire.RecordKeys:
    """Return the keys that the attributes of a strategy name."""
    return wire.RecordKeys(
        strategy.arrayrecord_key, strategy.configrecord_key, strategy.weighted_by_key
    )
