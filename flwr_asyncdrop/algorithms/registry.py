"""The algorithms by name; ``"package.module:Class"`` names one from outside."""

from types import MappingProxyType

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
from flwr_asyncdrop.algorithms.stepped import (
    AsyncDropPlus,
    FedAvg,
    FedBuff,
    FedBuffWait,
)
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.references import is_reference, load_reference

ALGORITHMS = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            FedAvg,
            AsyncFedAvg,
            AsyncWeighted,
            AsyncFedProx,
            AsyncFjord,
            FedBuff,
            FedBuffWait,
            AsyncDrop,
            HeteroAsyncDrop,
            LayerwiseAsyncDrop,
            AsyncDropPlus,
        )
    }
)
"""The classes of our own algorithms by name."""


def algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm.

    Parameters
    ----------
    name : str
        One of `ALGORITHMS`, or ``"package.module:Class"``.

    Raises
    ------
    ConfigError
        If there is none of that name, or it is not an `Algorithm`.
    """
    if not is_reference(name):
        if name in ALGORITHMS:
            return ALGORITHMS[name]
        raise ConfigError(
            f"algo={name!r} is not known: choose one of {', '.join(ALGORITHMS)}, or "
            "package.module:Class for your own"
        )
    found = load_reference("algo", name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(
            f"algo={name!r} is not an algorithm: make it a frozen dataclass that "
            "subclasses flwr_asyncdrop.algorithms.Algorithm"
        )
    return found
