"""Simulated devices, and Flower's Grid served by processes on this machine."""

from flwr_asyncdrop.simulation.local_grid import LocalGrid
from flwr_asyncdrop.simulation.profiles import DeviceProfile, TaskCost, speed_levels

__all__ = ["DeviceProfile", "LocalGrid", "TaskCost", "speed_levels"]
