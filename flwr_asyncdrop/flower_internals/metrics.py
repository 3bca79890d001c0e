"""How Flower's own strategies average metrics. Seen in flwr 1.34 to 1.42."""

from flwr.serverapp.strategy.strategy_utils import (
    aggregate_metricrecords as aggregate_metricrecords,
)
