"""Orders of one version of the full model share its bytes, wherever they are."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from benchmarks.scale import InstantGrid
from flwr_asyncdrop import AsyncDropPlus, FedBuff, speed_levels, wire
from flwr_asyncdrop.server.callbacks import Callback

NODES = 32


class Watching(Callback):
    """Counts the versions in flight, and the copies of the model that serve them."""

    def __init__(self, grid):
        self.grid = grid
        self.versions, self.bases, self.copies = [], [], []

    def on_dispatch(self, state, order):
        orders = state.in_flight.values()
        self.versions.append(len({each.base_version for each in orders}))
        tensors = [each.part.weights["weights"] for each in orders]
        self.bases.append(len({tensor.data_ptr() for tensor in tensors}))
        records = [m.content["arrays"] for m in self.grid.waiting.values()]
        starts = {
            np.frombuffer(record["weights"].data, np.uint8).ctypes.data
            for record in records
        }
        spans = [range(start, start + 4_200) for start in starts]
        beside = {
            tensor.data_ptr()
            for tensor in tensors
            if not any(tensor.data_ptr() in span for span in spans)
        }
        self.copies.append(len(starts) + len(beside))


def test_messages_and_bases_of_a_version_are_one_copy():
    grid = InstantGrid(NODES)
    watching = Watching(grid)
    strategy = FedBuff(
        buffer_size=16,
        in_flight=NODES,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        callbacks=[watching],
    )
    strategy.start(grid, ArrayRecord({"weights": torch.zeros(1_000)}), num_rounds=4)
    assert max(watching.versions) >= 3
    assert watching.bases == watching.versions
    assert watching.copies == watching.versions


class OnMessages(Callback):
    """Looks whether what an order keeps lies in its message, and not beside it."""

    def __init__(self, grid):
        self.grid = grid
        self.shared = []

    def on_dispatch(self, state, order):
        record = next(reversed(self.grid.waiting.values())).content["arrays"]
        for name, tensor in order.part.weights.items():
            data = np.frombuffer(record[name].data, np.uint8)
            assert tensor.shape == record[name].shape
            self.shared.append(np.shares_memory(tensor.numpy(), data))


def test_what_is_kept_of_a_submodel_lies_in_its_message():
    grid = InstantGrid(NODES)
    watching = OnMessages(grid)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    strategy = AsyncDropPlus(
        model=model,
        example_inputs=torch.zeros(1, 4),
        in_flight=8,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        callbacks=[watching],
    )
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=2)
    assert len(watching.shared) == 16 * len(model.state_dict())
    assert all(watching.shared)


def test_a_client_that_changes_its_message_changes_no_other():
    grid = InstantGrid(NODES)
    seen = []
    reply = grid.reply

    def spoils(message):
        seen.append(message.content["arrays"]["weights"].numpy().copy())
        answer = reply(message)
        message.content["arrays"]["weights"] = Array(np.full(9, 7.0, np.float32))
        return answer

    grid.reply = spoils
    strategy = FedBuff(
        buffer_size=8, in_flight=8, fleet=speed_levels, fraction_evaluate=0.0
    )
    strategy.start(grid, ArrayRecord({"weights": torch.ones(9)}), num_rounds=1)
    assert len(seen) == 8
    assert all((weights == 1.0).all() for weights in seen)


def test_views_are_the_tensors_of_a_record_on_its_bytes():
    state = {
        "matrix": torch.arange(6.0).reshape(2, 3),
        "count": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(5, dtype=torch.float16),
    }
    record = wire.to_record(state)
    views = wire.views_of(record)
    assert views.keys() == state.keys()
    for name, tensor in state.items():
        assert views[name].dtype == tensor.dtype
        assert torch.equal(views[name], tensor)
    start = np.frombuffer(record["matrix"].data, np.uint8).ctypes.data
    length = len(record["matrix"].data)
    assert start < views["matrix"].data_ptr() < start + length
    del record  # the tensors keep the bytes
    assert views["matrix"].sum() == 15


def test_columns_first_are_copied():
    columns = torch.arange(6.0).reshape(2, 3).T
    record = wire.to_record({"matrix": columns})
    view = wire.views_of(record)["matrix"]
    assert torch.equal(view, columns)
    start = np.frombuffer(record["matrix"].data, np.uint8).ctypes.data
    length = len(record["matrix"].data)
    assert not start < view.data_ptr() < start + length
