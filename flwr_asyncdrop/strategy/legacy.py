"""The hooks of Flower's legacy strategies: refused, with what replaces them."""

from typing import NoReturn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.strategy.for_subclasses import ForSubclasses

LEGACY_HOOKS = (
    "initialize_parameters",
    "configure_fit",
    "aggregate_fit",
    "evaluate",
    "num_fit_clients",
    "num_evaluation_clients",
)
# What FedAvg and its children call in themselves.
PRIVATE_HOOKS = (
    "_check_and_log_replies",
    "_construct_messages",
    "_compute_deltat_and_mt",
)


class LegacyHooks:
    """Says, to a legacy server, that it cannot run these strategies."""

    def initialize_parameters(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse a legacy server: this is the first hook that it calls."""
        _refuse(self)

    def configure_fit(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse a legacy server."""
        _refuse(self)

    def aggregate_fit(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse a legacy server."""
        _refuse(self)

    def evaluate(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse a legacy server."""
        _refuse(self)


def check_no_legacy(strategy: object) -> None:
    """Raise ConfigError if a subclass has hooks that nobody would call."""
    hooks = {"Flower's legacy strategies": LEGACY_HOOKS, "FedAvg": PRIVATE_HOOKS}
    found = {
        api: ", ".join(repr(name) for name in names if _has_own(strategy, name))
        for api, names in hooks.items()
    }
    if any(found.values()):
        said = " and ".join(f"{own} of {api}" for api, own in found.items() if own)
        raise ConfigError(
            f"{type(strategy).__name__} has {said}: such hooks are never called here, "
            "so move what they do to configure_train, aggregate_train, an Aggregator "
            "or a Callback (docs/migrating.md)"
        )


def _has_own(strategy: object, name: str) -> bool:
    """Return whether a subclass overrides, or adds, a method."""
    found = getattr(strategy, name, None)
    refused = getattr(LegacyHooks, name, getattr(ForSubclasses, name, None))
    return found is not None and getattr(found, "__func__", None) is not refused


def _refuse(strategy: object) -> NoReturn:
    raise ConfigError(
        f"{type(strategy).__name__} does not run on Flower's legacy server "
        "(start_server, start_simulation, or a ServerApp with a server_fn): write a "
        "ServerApp with @app.main() that calls strategy.start(grid, initial_arrays) "
        "(docs/migrating.md)"
    )
