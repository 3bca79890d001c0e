"""Clients that train something else than the model that they return."""

import logging

from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.fingerprint import is_unchanged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict

logger = logging.getLogger("flwr.asyncdrop")

_DETAILED = 5


class UnchangedReplies(Callback):
    """Counts the replies whose weights are bit for bit those that were sent.

    They are merged like any other: a learning rate of 0 is not wrong. But a client
    whose optimizer has the parameters of another model, or that returns another model
    than it trains, looks just like that.
    """

    def __init__(self) -> None:
        self.by_device: dict[int, int] = {}

    def state_dict(self) -> StateDict:
        """Return the counts."""
        return {"by_device": {str(d): count for d, count in self.by_device.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue to count."""
        self.by_device = {int(d): count for d, count in state["by_device"].items()}

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Compare a reply with what was sent; warn once a device, of the first few."""
        if merged.reply.extra:  # it may have trained what came beside the model
            return
        if not is_unchanged(merged.reply.arrays, merged.order.sent):
            return
        device = merged.order.device
        known = device in self.by_device
        self.by_device[device] = self.by_device.get(device, 0) + 1
        if not known and len(self.by_device) <= _DETAILED:
            logger.warning(
                "device %d returned exactly the weights that it was sent: if its "
                "learning rate is not 0, train and return the model that "
                "load_submodel(model, ...) returns, with an optimizer of that model's "
                "parameters%s",
                device,
                " (other devices are only counted)"
                if len(self.by_device) == _DETAILED
                else "",
            )

    def on_end(self, state: RunState) -> None:
        """Say how many they were, and whether the model has changed at all."""
        if state.updates and not (state.version or state.ended):
            logger.warning(
                "the global model is the initial one: the aggregator has changed "
                "nothing with %s",
                counted(state.updates, "update"),
            )
        if self.by_device:
            logger.warning(
                "replies with exactly the weights that were sent: %d of %d, from %s: "
                "nothing was trained there",
                sum(self.by_device.values()),
                state.updates,
                counted(len(self.by_device), "device"),
            )
