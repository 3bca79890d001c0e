"""Whether an aggregator that merges products fits the adapters of a plan."""

from flwr_asyncdrop.aggregation import (
    Aggregator,
    Clipped,
    ProductBuffered,
    ProductMixing,
)
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import LoraPlan, Plan


def check_products(aggregator: Aggregator, plan: Plan | None) -> None:
    """Raise ConfigError if adapters would be merged as products and are none."""
    merges = aggregator.clipped if isinstance(aggregator, Clipped) else aggregator
    nonlinear = plan.nonlinear if isinstance(plan, LoraPlan) else ()
    if nonlinear and isinstance(merges, ProductBuffered | ProductMixing):
        raise ConfigError(
            f"{type(merges).__name__} merges products B A, and {', '.join(nonlinear)} "
            "has something between A and B, such as an activation: leave it out, and "
            "factors are merged each by itself"
        )
