"""A run as OpenTelemetry sees it: needs the extra ``tracing``."""

from flwr_asyncdrop.observers.tracing.tracing import OpenTelemetryTracing

__all__ = ["OpenTelemetryTracing"]
