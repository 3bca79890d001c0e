"""Callbacks that watch a run: history, progress, results, metrics."""
