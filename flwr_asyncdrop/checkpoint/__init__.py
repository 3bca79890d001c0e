"""Checkpoints: a run that was killed resumes with the same result."""

from flwr_asyncdrop.checkpoint.checkpoint import Checkpoint, newest, run_folder
from flwr_asyncdrop.checkpoint.checkpointer import Checkpointer

__all__ = ["Checkpoint", "Checkpointer", "newest", "run_folder"]
