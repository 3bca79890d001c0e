"""A run's files: one writer at a time, each file whole, and a mark when all are."""
