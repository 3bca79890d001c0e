"""The HTTP port that Prometheus reads."""

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from flwr_asyncdrop.exceptions import ConfigError


class Endpoint:
    """Serves the metrics of a collector, and the process's own, until it is closed.

    Port 0 is any that is free; the attribute says which it is.
    """

    def __init__(self, port: int, address: str, collector: Collector) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as error:
            raise ConfigError(
                f"metrics-port={port} on {address!r} cannot be opened "
                f"({error.strerror}): choose another metrics-port or metrics-address, "
                "or leave them out"
            ) from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Close the port, and wait until nobody listens any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
