"""Find the units of a module by running it once on labelled tensors."""

from flwr_asyncdrop.submodel.discovery.discover import discover

__all__ = ["discover"]
