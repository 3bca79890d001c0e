"""Arguments of Flower's strategies that these lack, and what takes their place."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, NoReturn

from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import did_you_mean

_IN_START = "it is an argument of start(...)"
_SERVER_STEP = (
    "no server optimizer adapts here: FedBuff and SyncFedAvg have server_lr and "
    "server_momentum"
)
_ROBUST = "use combine='median' or combine='trimmed-mean' with trim=..., of FedBuff"
_FAIRNESS = "no strategy weighs clients by their loss: leave it out"
_WRAPPER = (
    "wrap the strategy as with Flower's own, which makes the rounds synchronous, or "
    "use the client mods (docs/robustness.md)"
)

REPLACED: Mapping[str, str] = {
    # FedProx, FedOpt and its family, FedAvgM
    "proximal_mu": "use AsyncFedProx(proximal_mu=...)",
    "eta": _SERVER_STEP,
    "beta_1": _SERVER_STEP,
    "beta_2": _SERVER_STEP,
    "tau": _SERVER_STEP,
    "eta_l": "the client's learning rate goes into start(train_config=...)",
    "server_learning_rate": "use FedBuff(server_lr=...) or SyncFedAvg(server_lr=...)",
    "server_momentum": "use FedBuff(server_momentum=...) or SyncFedAvg",
    # FedTrimmedAvg, Krum, Bulyan, QFedAvg
    "beta": "use FedBuff(combine='trimmed-mean', trim=...)",
    "num_malicious_nodes": _ROBUST,
    "num_nodes_to_select": _ROBUST,
    "selection_rule": _ROBUST,
    "client_learning_rate": "it goes into start(train_config=...)",
    "q": _FAIRNESS,
    "train_loss_key": _FAIRNESS,
    # Differential privacy
    "strategy": _WRAPPER,
    "noise_multiplier": _WRAPPER,
    "clipping_norm": "use clip_norm=..., or " + _WRAPPER,
    "num_sampled_clients": _WRAPPER,
    # Flower's legacy strategies
    "fraction_fit": "it is fraction_train now",
    "min_fit_clients": "it is min_train_nodes now",
    "min_evaluate_clients": "it is min_evaluate_nodes now",
    "min_available_clients": "it is min_available_nodes now",
    "initial_parameters": "pass start(initial_arrays=ArrayRecord(...))",
    "on_fit_config_fn": "pass start(train_config=...), a ConfigRecord or a function of "
    "the round that returns one",
    "on_evaluate_config_fn": "pass start(evaluate_config=...), a ConfigRecord or a "
    "function of the round that returns one",
    "fit_metrics_aggregation_fn": "it is train_metrics_aggr_fn now",
    "evaluate_metrics_aggregation_fn": "it is evaluate_metrics_aggr_fn now",
    "accept_failures": "a task that fails costs that task alone: leave it out",
    "inplace": "updates are always merged in place: leave it out",
    # Arguments of start, and one that these strategies had
    "evaluate_fn": _IN_START,
    "train_config": _IN_START,
    "evaluate_config": _IN_START,
    "num_rounds": _IN_START,
    "timeout": _IN_START,
    "initial_arrays": _IN_START,
    "keys": "pass arrayrecord_key, configrecord_key and weighted_by_key",
}


def choose_algorithm(
    strategy: str,
    kind: type[Algorithm] | None,
    algorithm: Algorithm | None,
    hyperparameters: Mapping[str, Any],
    arguments: Collection[str],
) -> Algorithm | None:
    """Return the algorithm that is given, or one of `kind` with `hyperparameters`.

    Messages name `strategy`; `arguments` are those that every strategy has.
    ConfigError for the names that are neither there nor among the hyperparameters.
    """
    if kind is None or algorithm is not None:
        otherwise = "set it on the algorithm, e.g. algorithms.AsyncDrop(drop_rate=0.5)"
        if hyperparameters:
            _refuse(f"{strategy} takes no", hyperparameters, arguments, otherwise)
        return algorithm
    known = [field.name for field in fields(kind)]
    unknown = hyperparameters.keys() - set(known)
    if unknown:
        otherwise = f"leave it out; its hyperparameters are {', '.join(known)}"
        _refuse(f"{strategy} has no", unknown, [*known, *arguments], otherwise)
    return kind(**hyperparameters)


def _refuse(
    words: str, names: Collection[str], known: Collection[str], otherwise: str
) -> NoReturn:
    """Raise ConfigError for all `names` at once; those with one fix share it."""
    fixes: dict[str, list[str]] = {}
    for name in sorted(names):
        fix = REPLACED.get(name) or did_you_mean(name, known) or otherwise
        fixes.setdefault(fix, []).append(repr(name))
    said = "; ".join(f"{', '.join(alike)}: {fix}" for fix, alike in fixes.items())
    raise ConfigError(f"{words} {said}")
