"""A client with mods of its own, trained asynchronously."""
