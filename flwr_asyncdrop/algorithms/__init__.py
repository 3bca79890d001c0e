"""The algorithms: how updates merge, what is dropped, what clients minimise."""
