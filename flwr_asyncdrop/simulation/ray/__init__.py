"""LocalGrid's ClientApps on a Ray cluster. Ray is imported when it is used."""

from flwr_asyncdrop.simulation.ray.runner import RayRunner

__all__ = ["RayRunner"]
