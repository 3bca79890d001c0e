"""Simulated devices, and Flower's Grid served by processes on this machine."""

from flwr_asyncdrop.simulation.availability import Availability
from flwr_asyncdrop.simulation.local_grid import LocalGrid
from flwr_asyncdrop.simulation.profiles import DeviceProfile, TaskCost, speed_levels
from flwr_asyncdrop.simulation.traces import read_trace, trace_fleet

__all__ = [
    "Availability",
    "DeviceProfile",
    "LocalGrid",
    "TaskCost",
    "read_trace",
    "speed_levels",
    "trace_fleet",
]
