"""Devices and time: who they are, how fast, when they are there, and who is next."""

from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.idle import IdleDevices
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost, speed_levels
from flwr_asyncdrop.fleet.selection import (
    QuickSelection,
    Selection,
    Stratified,
    Uniform,
)
from flwr_asyncdrop.fleet.traces import read_trace, trace_fleet

__all__ = [
    "Availability",
    "DeviceProfile",
    "IdleDevices",
    "QuickSelection",
    "Selection",
    "Stratified",
    "TaskCost",
    "Uniform",
    "read_trace",
    "speed_levels",
    "trace_fleet",
]
