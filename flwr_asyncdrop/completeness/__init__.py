"""Whether a checkpoint has all that changes in a user's own objects during a run."""
