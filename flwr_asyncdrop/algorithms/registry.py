"""The algorithms by name. A new one is a line here and a class in `strategies`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from flwr_asyncdrop.aggregation import (
    NUM_GROUPS,
    Aggregator,
    Buffered,
    Clipped,
    Combiner,
    LatestPerGroup,
    Mixing,
    Weighting,
    combiner,
    weighting,
)
from flwr_asyncdrop.aggregation.changes import Normaliser
from flwr_asyncdrop.algorithms.hyperparameters import HYPERPARAMETERS, Hyperparameters
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import MaskPolicy, OrderedMask, RandomMask, SmartPartition

AggregatorRule = Callable[[Hyperparameters, int], Aggregator]
"""Builds an aggregator for so many devices in flight."""

MaskRule = Callable[[Hyperparameters], MaskPolicy]
LocalRule = Callable[[Hyperparameters], Mapping[str, float]]


def _plain(hyper: Hyperparameters) -> Mapping[str, float]:
    tau = hyper.logit_adjustment
    return {"logit-adjustment": tau} if tau else {}


@dataclass(frozen=True)
class Algorithm:
    """What tells one algorithm from another.

    Attributes
    ----------
    aggregator : callable
        Builds the aggregator, before clipping, from the hyperparameters and the number
        of devices that can be in flight.
    uses : frozenset of str
        The hyperparameters that make a difference to it.
    mask : callable or None
        Builds the mask policy from the hyperparameters; None if every device trains
        the full model.
    local : callable
        What its local objective adds to the train config of every task.
    units : {"channels", "blocks"}
        What a mask leaves out: channels, neurons, heads and their like, or whole
        residual blocks.
    averaging : float
        Decay of the average of the model's versions that is served, unless the
        hyperparameter says otherwise; 0 for none.
    """

    aggregator: AggregatorRule
    uses: frozenset[str]
    mask: MaskRule | None = None
    local: LocalRule = _plain
    units: Literal["channels", "blocks"] = "channels"
    averaging: float = 0.0

    def hyperparameters(self, name: str, values: Mapping[str, Any]) -> Hyperparameters:
        """Return hyperparameters with these values, and defaults for the others.

        Raises
        ------
        ConfigError
            If one does not exist, or makes no difference to this algorithm.
        """
        for key in values:
            if key not in self.uses:
                problem = "does not use" if key in HYPERPARAMETERS else "has no"
                used = ", ".join(sorted(self.uses)) or "none"
                raise ConfigError(
                    f"{name} {problem} hyperparameter {key!r}: leave it out; it uses "
                    f"{used}"
                )
        return Hyperparameters(**values)

    def build_aggregator(self, hyper: Hyperparameters, cohort: int) -> Aggregator:
        """Build the aggregator for so many devices in flight.

        Raises
        ------
        ConfigError
            If a hyperparameter is out of range, or does not go with the cohort.
        """
        aggregator = self.aggregator(hyper, cohort)
        clips = hyper.clip_norm != 0
        return Clipped(aggregator, hyper.clip_norm) if clips else aggregator


def _mixing(hyper: Hyperparameters, _: int) -> Aggregator:
    return Mixing(hyper.alpha)


def _weighted_mixing(hyper: Hyperparameters, _: int) -> Aggregator:
    name = hyper.weighting or "capability"
    weigh = weighting(name, hyper.weighting_a, hyper.weighting_b)
    return Mixing(hyper.alpha, weigh)


def _fedbuff(hyper: Hyperparameters, cohort: int, *, waits: bool = False) -> Aggregator:
    size = hyper.buffer_size or max(cohort // 2, 1)
    if waits and size > cohort:
        raise ConfigError(
            f"buffer_size={size} is more than the {cohort} devices in flight, which "
            "would wait for ever: lower it, or put more devices in flight"
        )
    return Buffered(
        size,
        weighting=_staleness(hyper),
        combine=_combine(hyper, size, "size"),
        server_lr=hyper.server_lr or 1.0,
        momentum=hyper.server_momentum,
        waits=waits,
    )


def _fedbuff_waiting(hyper: Hyperparameters, cohort: int) -> Aggregator:
    return _fedbuff(hyper, cohort, waits=True)


def _remembered(hyper: Hyperparameters, cohort: int) -> Aggregator:
    num_groups = min(NUM_GROUPS, cohort)
    return LatestPerGroup(
        hyper.buffer_size or max(cohort // 2, 1),
        combine=_combine(hyper, num_groups, "counts"),
        server_lr=hyper.server_lr or 0.8,
        momentum=hyper.server_momentum,
    )


def _staleness(hyper: Hyperparameters) -> Weighting:
    name = hyper.weighting or "polynomial"
    return weighting(name, hyper.weighting_a, hyper.weighting_b)


def _combine(hyper: Hyperparameters, count: int, normaliser: Normaliser) -> Combiner:
    return combiner(hyper.combine, count, trim=hyper.trim, normaliser=normaliser)


def _fedavg(hyper: Hyperparameters, cohort: int) -> Aggregator:
    return Buffered(
        cohort,
        combine=_combine(hyper, cohort, "examples"),
        server_lr=hyper.server_lr or 1.0,
        momentum=hyper.server_momentum,
        waits=True,
    )


def _random(hyper: Hyperparameters) -> MaskPolicy:
    return RandomMask(hyper.drop_rate, hyper.round_to)


def _random_graded(hyper: Hyperparameters) -> MaskPolicy:
    return RandomMask(hyper.drop_rate, hyper.round_to, spread=1 / 3)


def _smart(hyper: Hyperparameters) -> MaskPolicy:
    return SmartPartition(hyper.drop_rate, hyper.round_to)


def _smart_blocks(hyper: Hyperparameters) -> MaskPolicy:
    return SmartPartition(hyper.drop_rate)


def _ordered(hyper: Hyperparameters) -> MaskPolicy:
    return OrderedMask(hyper.drop_rate, hyper.round_to)


def _proximal(hyper: Hyperparameters) -> Mapping[str, float]:
    return {"proximal-mu": hyper.proximal_mu, **_plain(hyper)}


def _adjusted(hyper: Hyperparameters) -> Mapping[str, float]:
    return {"logit-adjustment": hyper.logit_adjustment or 1.0}


_ALL = frozenset({"averaging", "clip_norm", "logit_adjustment"})
_SERVER = _ALL | {"server_lr", "server_momentum", "combine", "trim"}
_WEIGHTED = frozenset({"weighting", "weighting_a", "weighting_b"})
_BUFFERED = _SERVER | _WEIGHTED | {"buffer_size"}
_MIXED = _ALL | {"alpha"}
_WIDTHS = frozenset({"drop_rate", "round_to"})
_DROPPED = _MIXED | _WIDTHS

ALGORITHMS = MappingProxyType(
    {
        # Synchronous control: the mean of a cohort, weighted by examples
        "fedavg": Algorithm(_fedavg, _SERVER),
        # Alg. 1: W <- (1 - alpha) W + alpha W_i
        "async-fedavg": Algorithm(_mixing, _MIXED),
        # FedAsync: the same with alpha scaled by capability or staleness
        "async-weighted": Algorithm(_weighted_mixing, _MIXED | _WEIGHTED),
        # Alg. 1 with mu/2 ||w - w_dispatched||^2 in the local objective
        "async-fedprox": Algorithm(_mixing, _MIXED | {"proximal_mu"}, local=_proximal),
        # Alg. 2 with nested widths: the faster the device, the wider its submodel
        "async-fjord": Algorithm(_mixing, _DROPPED, _ordered),
        # FedBuff: a server step with the mean of K changes, weighted by staleness
        "fedbuff": Algorithm(_fedbuff, _BUFFERED),
        # As the paper compares with it: devices wait for the step they are part of
        "fedbuff-wait": Algorithm(_fedbuff_waiting, _BUFFERED),
        # Alg. 2: Alg. 1 on the coordinates of a random mask
        "asyncdrop": Algorithm(_mixing, _DROPPED, _random),
        # Alg. 3: the same on those of the smart partition
        "hetero-asyncdrop": Algorithm(_mixing, _DROPPED, _smart),
        # The paper's ablation: Alg. 3 with whole residual blocks for units
        "layerwise-asyncdrop": Algorithm(
            _mixing, _MIXED | {"drop_rate"}, _smart_blocks, units="blocks"
        ),
        # Ours: steps with the latest changes of all speed groups, on random masks that
        # drop more on slower devices; a loss that knows the label skew; an average of
        # the versions is served
        "asyncdrop-plus": Algorithm(
            _remembered,
            _SERVER | _WIDTHS | {"buffer_size"},
            _random_graded,
            local=_adjusted,
            averaging=0.8,
        ),
    }
)


def algorithm(name: str) -> Algorithm:
    """Look an algorithm up.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    try:
        return ALGORITHMS[name]
    except KeyError:
        raise ConfigError(
            f"algo={name!r} is not known: choose one of {', '.join(ALGORITHMS)}"
        ) from None
