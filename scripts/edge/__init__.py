"""Starts the fleets of the compose files for real, and tries what they promise."""
