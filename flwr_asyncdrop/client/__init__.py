"""The client's side: loading a submodel, local training, a device's capacity."""

from flwr_asyncdrop.client.capacity import CapacityMod
from flwr_asyncdrop.client.loading import load_submodel

__all__ = ["CapacityMod", "load_submodel"]
