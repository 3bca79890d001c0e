"""What the operator of a run sees from outside."""

from flwr_asyncdrop.observers.prometheus.prometheus import PrometheusMetrics

__all__ = ["PrometheusMetrics"]
