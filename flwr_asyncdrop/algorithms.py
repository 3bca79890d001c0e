"""The algorithms by name. A new one is a line here and a class in `strategy`."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from flwr_asyncdrop.aggregation import Aggregator, Mixing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import MaskPolicy, RandomMask, SmartPartition

__all__ = ["ALGORITHMS", "Algorithm", "algorithm"]


@dataclass(frozen=True)
class Algorithm:
    """What tells one algorithm from another.

    Attributes
    ----------
    aggregator : callable
        Builds the aggregator from the mixing rate ``alpha``.
    mask : callable or None
        Builds the mask policy from the drop rate and the multiple that widths are
        rounded to; None if every device trains the full model.
    units : {"channels", "blocks"}
        What a mask leaves out: channels, neurons, heads and their like, or whole
        residual blocks.
    """

    aggregator: Callable[[float], Aggregator]
    mask: Callable[[float, int], MaskPolicy] | None
    units: Literal["channels", "blocks"] = "channels"


ALGORITHMS = MappingProxyType(
    {
        # Alg. 1: W <- (1 - alpha) W + alpha W_i
        "async-fedavg": Algorithm(Mixing, mask=None),
        # Alg. 2: the same on the coordinates of a random mask
        "asyncdrop": Algorithm(Mixing, RandomMask),
        # Alg. 3: the same on those of the smart partition
        "hetero-asyncdrop": Algorithm(Mixing, SmartPartition),
        # The paper's ablation: Alg. 3 with whole residual blocks for units
        "layerwise-asyncdrop": Algorithm(Mixing, SmartPartition, units="blocks"),
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
