"""Numbers of replies and tasks are read where they lie, and nobody changes them."""

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from benchmarks.large import TrainingGrid
from flwr_asyncdrop import speed_levels
from tests.strategies import STRATEGIES

DEVICES = 8

pytestmark = pytest.mark.usefixtures("no_settling")


class Remembering(TrainingGrid):
    """Keeps a copy of all bytes that were sent and that came back."""

    def __init__(self):
        super().__init__(DEVICES)
        self.arrays = []

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            self.keep(message)
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        for reply in replies:
            self.keep(reply)
        return replies

    def keep(self, message):
        for array in message.content["arrays"].values():
            self.arrays.append((array.data, bytes(bytearray(array.data))))


# Layers for units need residual blocks; their updates are merged like any submodel's.
@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"layerwise-asyncdrop"}))
def test_bytes_of_messages_stay_as_they_are(name):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    )
    grid = Remembering()
    strategy = STRATEGIES[name](
        model=model,
        example_inputs=torch.zeros(2, 4),
        in_flight=4,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        log_rounds=False,
    )
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=4)
    assert len(grid.arrays) >= 2 * 16 * len(model.state_dict())
    assert all(now == then for now, then in grid.arrays)
