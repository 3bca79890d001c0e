"""Run a copy of a model in other ways: other inputs, modes, paths and precisions."""
