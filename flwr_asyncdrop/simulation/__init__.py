"""Flower's Grid, served by processes on this machine."""

from flwr_asyncdrop.simulation.local_grid import LocalGrid

__all__ = ["LocalGrid"]
