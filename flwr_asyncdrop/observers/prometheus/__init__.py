"""The metrics of a run over HTTP, for Prometheus."""

from flwr_asyncdrop.observers.prometheus.prometheus import PrometheusMetrics

__all__ = ["PrometheusMetrics"]
