"""The algorithms by name; ``"package.module:Class"`` names one from outside."""

from types import MappingProxyType

from flwr_asyncdrop.algorithms import mixed, stepped
from flwr_asyncdrop.algorithms.algorithm import Algorithm
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.overrides import check_fields
from flwr_asyncdrop.parameters import did_you_mean
from flwr_asyncdrop.references import is_reference, load_reference

ALGORITHMS = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            stepped.FedAvg,
            mixed.AsyncFedAvg,
            mixed.AsyncWeighted,
            mixed.AsyncFedProx,
            mixed.AsyncFjord,
            stepped.FedBuff,
            stepped.FedBuffWait,
            mixed.AsyncDrop,
            mixed.HeteroAsyncDrop,
            mixed.LayerwiseAsyncDrop,
            stepped.AsyncDropPlus,
        )
    }
)
"""The classes of our own algorithms by name."""


def algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm: `name` is as in a run-config."""
    if not is_reference(name):
        if name in ALGORITHMS:
            return ALGORITHMS[name]
        hint = did_you_mean(name, ALGORITHMS)
        raise ConfigError(
            f"algo={name!r} is not known: {hint and f'{hint} '}choose one of "
            f"{', '.join(ALGORITHMS)}, or package.module:Class for your own"
        )
    found = load_reference("algo", name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(
            f"algo={name!r} is not an algorithm: make it a frozen dataclass that "
            "subclasses flwr_asyncdrop.algorithms.Algorithm"
        )
    check_fields(found)
    return found
