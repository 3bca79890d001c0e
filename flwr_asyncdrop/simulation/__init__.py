"""Flower's Grid, served on this machine or by a runner of one's own."""

from flwr_asyncdrop.simulation.client_app import load_client_app
from flwr_asyncdrop.simulation.local_grid import LocalGrid
from flwr_asyncdrop.simulation.ray.runner import RayRunner
from flwr_asyncdrop.simulation.runner import Answer, ClientCall, Runner

__all__ = [
    "Answer",
    "ClientCall",
    "LocalGrid",
    "RayRunner",
    "Runner",
    "load_client_app",
]
