"""How far a task may move a counter, such as ``num_batches_tracked``."""

import torch

from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.submodel import State
from flwr_asyncdrop.submodel.types import is_inexact

MOST_COUNTED = 1 << 20
"""What one task may add to a counter; more batches than any device trains in one."""


def check_counters(state: State, arrays: State) -> None:
    """Raise ReplyError if an update would push a counter of the model too far.

    The global model takes the larger value, so counters never decrease, and one that
    is pushed to the end of its range would overflow on every device. `state` is the
    global model, and `arrays` are an update's.
    """
    for name, tensor in state.items():
        if not _counts(tensor) or arrays[name].numel() == 0:
            continue
        most, found = int(tensor.max()) + MOST_COUNTED, int(arrays[name].max())
        if found > most:
            raise ReplyError(
                "counter",
                f"the counter {name!r} came back as {found:,}, and a task can add "
                f"{MOST_COUNTED:,} at the most: return that of the model that was "
                "loaded from the message",
            )


def _counts(tensor: torch.Tensor) -> bool:
    return not is_inexact(tensor) and tensor.dtype != torch.bool and tensor.numel() > 0
