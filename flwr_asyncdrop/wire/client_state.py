"""The records that clients keep in Flower's ``context.state``, by their keys."""

from flwr.app import RecordDict

FROZEN_KEY = "asyncdrop-frozen."
"""Prefix of the key of what does not train, which the server sends again if need be."""

RESIDUAL_KEY = "asyncdrop-residual"
"""Prefix of the keys of what a codec with error feedback owes the server."""


def kept_by_client(state: RecordDict) -> str:
    """Return the key of a record that a client's own code keeps; "" for none."""
    ours = FROZEN_KEY, RESIDUAL_KEY
    return next((key for key in state if not key.startswith(ours)), "")
