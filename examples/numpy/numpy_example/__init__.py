"""A linear classifier in plain NumPy, trained asynchronously."""
