"""Devices and time: who they are, how fast, when there, who is next, and with what."""

from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.idle import IdleDevices
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.selection import (
    QuickSelection,
    Selection,
    Stratified,
    Uniform,
)
from flwr_asyncdrop.fleet.traces import read_trace, trace_fleet
from flwr_asyncdrop.fleet.work import WorkBySpeed, WorkContext, WorkPolicy

__all__ = [
    "Availability",
    "DeviceProfile",
    "IdleDevices",
    "QuickSelection",
    "Selection",
    "Stratified",
    "TaskCost",
    "Uniform",
    "WorkBySpeed",
    "WorkContext",
    "WorkPolicy",
    "read_trace",
    "speed_levels",
    "trace_fleet",
]
