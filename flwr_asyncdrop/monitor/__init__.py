"""What the operator of a run sees from outside."""

from flwr_asyncdrop.monitor.prometheus import PrometheusMetrics

__all__ = ["PrometheusMetrics"]
