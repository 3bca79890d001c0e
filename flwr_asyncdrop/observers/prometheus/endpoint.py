"""The HTTP port that Prometheus reads."""

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from flwr_asyncdrop.exceptions import ConfigError


class Endpoint:
    """Serves a registry over HTTP until it is closed.

    Parameters
    ----------
    port : int
        TCP port; 0 for any that is free.
    address : str
        Address to listen on.
    registry : CollectorRegistry
        What is served.
    visitor : Collector
        Is in the registry for as long as the port is open.

    Attributes
    ----------
    port : int
        The port that it listens on.

    Raises
    ------
    ConfigError
        If the port cannot be opened.
    """

    def __init__(
        self, port: int, address: str, registry: CollectorRegistry, visitor: Collector
    ) -> None:
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as error:
            raise ConfigError(
                f"metrics-port={port} on {address!r} cannot be opened "
                f"({error.strerror}): choose another metrics-port or metrics-address, "
                "or leave them out"
            ) from error
        self.port: int = self._server.server_port
        self._registry = registry
        self._visitor = visitor
        registry.register(visitor)

    def close(self) -> None:
        """Close the port, and wait until nobody listens any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._registry.unregister(self._visitor)
