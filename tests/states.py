"""States as checkpoints keep them, for tests of what has a `state_dict`."""

import json

from flwr_asyncdrop.checkpoint.codec import pack, unpack

__all__ = ["saved_and_read"]


def saved_and_read(state):
    """Return a state as it is when it has been on a disk."""
    packed, tensors = pack(state)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return unpack(json.loads(json.dumps(packed)), copies)
