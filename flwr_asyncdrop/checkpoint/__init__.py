"""Checkpoints: a run that was killed goes on as if nothing had been."""

from flwr_asyncdrop.checkpoint.checkpoints import Checkpoints, newest, run_folder

__all__ = ["Checkpoints", "newest", "run_folder"]
