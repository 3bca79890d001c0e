"""How much one update counts: by its staleness, or by its device's capability."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any

from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import at_least

Weighting = Callable[[Update], float]
"""From an update to its weight, in [0, 1].

An object that remembers something is saved with its aggregator if it has
``state_dict`` and ``load_state_dict``. A run with one that has not gets no checkpoints.
"""


def constant(update: Update) -> float:
    """Weigh all updates alike: ``s(tau) = 1``."""
    return 1.0


def polynomial(update: Update, a: float = 0.5) -> float:
    """Weigh by ``s(tau) = (1 + tau)^-a``.

    FedAsync's polynomial; with ``a = 0.5`` it is FedBuff's ``1 / sqrt(1 + tau)``.
    """
    return float((1 + update.staleness) ** -a)


def hinge(update: Update, a: float = 10.0, b: float = 4.0) -> float:
    """Weigh by FedAsync's hinge: 1 up to ``tau = b``, then ``1 / (a (tau-b) + 1)``."""
    return 1.0 / (a * max(update.staleness - b, 0.0) + 1.0)


def capability(update: Update) -> float:
    """Weigh by the device's speed over that of the fastest device."""
    return update.capability


def weight_of(update: Update, weigh: Weighting) -> float:
    """Return the weight of an update, times its discount.

    ConfigError if it is negative or not finite: one NaN makes NaN of the global model.
    """
    weight = at_least(0).check("weighting(update)", weigh(update))
    return float(weight) * update.discount


WEIGHTINGS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {each.__name__: each for each in (capability, constant, polynomial, hinge)}
)
"""The weightings by name."""


def weighting(name: str, a: float | None = None, b: float | None = None) -> Weighting:
    """Return one of `WEIGHTINGS` with FedAsync's parameters, which are at least 0.

    None stands for the values of the FedAsync paper (Xie et al., 2019): ``a = 0.5`` for
    the polynomial, ``a = 10`` and ``b = 4`` for the hinge. ConfigError if the name is
    unknown or has no such parameter, or a number is negative or not finite.
    """
    if name not in WEIGHTINGS:
        raise ConfigError(
            f"weighting={name!r} is not known: choose one of {', '.join(WEIGHTINGS)}"
        )
    given: dict[str, Any] = {}
    for key, value in (("a", a), ("b", b)):
        if value is None:
            continue
        if not has_parameter(name, key):
            raise ConfigError(
                f"weighting={name!r} has no {key}: leave out {key}={value!r}, or "
                "choose weighting='hinge'"
            )
        given[key] = at_least(0).check(key, value)
    return partial(WEIGHTINGS[name], **given)


def has_parameter(name: str, key: str) -> bool:
    """Return whether one of `WEIGHTINGS` has FedAsync's ``a`` or ``b``."""
    return key in signature(WEIGHTINGS[name]).parameters
