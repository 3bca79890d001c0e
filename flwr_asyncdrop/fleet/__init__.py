"""Devices and time: who they are, how fast, when they are there, and who is next."""

from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost, speed_levels
from flwr_asyncdrop.fleet.traces import read_trace, trace_fleet

__all__ = [
    "Availability",
    "DeviceProfile",
    "TaskCost",
    "read_trace",
    "speed_levels",
    "trace_fleet",
]
