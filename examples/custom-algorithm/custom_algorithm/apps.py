"""The ready apps of flwr-asyncdrop: they find everything else by name."""

from flwr_asyncdrop.client_app import app as client
from flwr_asyncdrop.server_app import app as server

__all__ = ["client", "server"]
