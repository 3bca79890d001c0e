"""All keys of a run-config by name, those of algorithms too."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from flwr_asyncdrop.algorithms import ALGORITHMS, algorithm
from flwr_asyncdrop.app.config.keys import Key, hyperparameter_keys, keys_of
from flwr_asyncdrop.app.config.settings import Settings
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.references import is_reference

_SECTION_OF_HYPERPARAMETERS = 'Of the algorithm ("" = its own default)'


@lru_cache
def key_table(*algos: str) -> Mapping[str, Key]:
    """Return all keys of a run-config by name, with those of `algos` from outside."""
    outside = [algorithm(name) for name in algos if is_reference(name)]
    hyper = hyperparameter_keys(
        [*ALGORITHMS.values(), *outside], _SECTION_OF_HYPERPARAMETERS
    )
    own = keys_of(Settings)
    if both := sorted(hyper.keys() & own.keys()):
        raise ConfigError(
            f"{', '.join(algos)}: {both[0]} is a key of every run-config: call the "
            "hyperparameter something else"
        )
    first = next(iter(own.values())).details.section
    before = {name: key for name, key in own.items() if key.details.section == first}
    return MappingProxyType({**before, **hyper, **own})


INCIDENTAL = frozenset(
    name for name, key in key_table().items() if key.details.affects == "nothing"
)
"""The keys that do not change a run."""

IRRELEVANT = INCIDENTAL | {
    name for name, key in key_table().items() if key.details.affects == "length"
}
"""Those that may change when a run is resumed: some of them end it."""
