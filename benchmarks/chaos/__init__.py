"""Runs that are broken on purpose, and an audit of what is left of them."""
