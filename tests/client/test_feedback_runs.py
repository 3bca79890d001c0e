"""What devices owe in whole runs, against books that are kept naively.

Devices have personal layers, get other units in each task, join late, lose what they
have kept, and go for good, while another node comes.
"""

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import (
    AsyncDrop,
    CapacityMod,
    CodecMod,
    FrozenMod,
    load_personal,
    load_submodel,
    save_personal,
    wire,
)
from flwr_asyncdrop.server.callbacks import Callback
from tests.grids import HandlerGrid
from tests.runs import failing

pytestmark = pytest.mark.usefixtures("no_settling")
WIDTH = 40


def net(*, freezes=False):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, 16))
    model[0].requires_grad_(not freezes)
    return model


FULL = {name: tuple(tensor.shape) for name, tensor in net().state_dict().items()}


class Device:
    """Its context, and what it has wanted to send, by message."""

    def __init__(self, node):
        self.context = Context(1, node, {}, RecordDict(), {})
        self.owes = {}

    @property
    def kept(self):
        """Return what the mod has kept, by tensor."""
        record = self.context.state.array_records.get("asyncdrop-residual.own", {})
        return wire.from_record(ArrayRecord(dict(record)))


class Fleet:
    """Nodes that come, forget and go, before a task is theirs."""

    def __init__(self, app, seed):
        self.app, self.draws = app, np.random.default_rng(seed)
        self.devices = {node: Device(node) for node in (1, 2, 3)}
        self.by_task, self.happened = {}, Counter()
        self.grid = HandlerGrid(self.handle)

    def join(self):
        node = 1 + max(self.grid.node_ids, default=0) + self.happened.total()
        self.devices[node] = Device(node)
        self.grid.node_ids.append(node)

    def handle(self, message):
        node, number = message.metadata.dst_node_id, message.metadata.message_id
        draw = self.draws.random()
        if draw < 0.08:
            self.happened["gone"] += 1
            self.grid.node_ids.remove(node)
            self.join()
            return failing(message, "the node went")
        if draw < 0.16:
            self.happened["empty disk"] += 1
            self.devices[node] = Device(node)
        elif draw < 0.24:
            self.happened["late"] += 1
            self.join()
        sent = copy.deepcopy(message)
        sent.metadata.__dict__["_message_id"] = number
        self.by_task[number] = device = self.devices[node]
        return self.app(sent, device.context)


class Books(Callback):
    """Notes, by device and coordinate of the full model, what was lost on the way."""

    def __init__(self, wanted, *, masked):
        self.wanted, self.masked = wanted, masked
        self.checked, self.most = 0, 0.0

    def on_update(self, state, merged):
        number = merged.message.metadata.reply_to_message_id
        device = self.fleet.by_task[number]
        for name, array in merged.message.content["arrays"].items():
            if not array.stype.startswith("asyncdrop."):
                continue
            dims = merged.order.part.indices.get(name, {})
            at = np.ix_(*(
                dims[dim].numpy() if dim in dims else range(size)
                for dim, size in enumerate(FULL[name])
            ))  # fmt: skip
            sent = wire.decode_change(array, name, merged.order.coding).numpy()
            wanted = self.wanted[number][name]
            if self.masked:
                sent, wanted = sent[at], wanted[at]
            owes = device.owes.setdefault(name, np.zeros(FULL[name]))
            owes[at] += wanted - sent
        for name, kept in device.kept.items():
            np.testing.assert_allclose(kept, device.owes[name], atol=1e-5)
            self.checked += 1
            self.most = max(self.most, float(np.abs(device.owes[name]).max()))
        assert device.kept.keys() == device.owes.keys()


def client_app(wanted, *, freezes):
    frozen = [FrozenMod()] if freezes else []
    app = ClientApp(mods=[CapacityMod(), CodecMod(), *frozen])

    @app.train()
    def train(message, context):
        model = load_submodel(net(freezes=freezes), message.content["arrays"])
        before = wire.from_record(message.content["arrays"])
        load_personal(context, model, message, "4")
        generator = torch.Generator().manual_seed(len(wanted))
        with torch.no_grad():
            for parameter in model.parameters():
                step = torch.randn(parameter.shape, generator=generator)
                parameter += 0.05 * step * parameter.requires_grad
        save_personal(context, model, message, "4")
        after = model.state_dict()
        wanted[message.metadata.message_id] = {
            name: (after[name] - before[name]).double().numpy() for name in after
        }
        content = {
            "arrays": ArrayRecord(after),
            "metrics": MetricRecord({"num-examples": 2}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


@pytest.mark.parametrize("freezes", [False, True])
@pytest.mark.parametrize("mode", ["sliced", "masked"])
@pytest.mark.parametrize("codec", ["topk-q4", "down=q8,up=q2,feedback"])
def test_each_coordinate_owes_what_its_own_tasks_have_lost(codec, mode, freezes):
    wanted = {}
    books = Books(wanted, masked=mode == "masked")
    fleet = books.fleet = Fleet(client_app(wanted, freezes=freezes), seed=3)
    strategy = AsyncDrop(
        net(freezes=freezes),
        torch.zeros(2, 8),
        in_flight=3,
        mode=mode,
        codec=codec,
        fraction_evaluate=0.0,
        outlier_factor=0,
        callbacks=[books],
        log_rounds=False,
    )
    strategy.start(fleet.grid, ArrayRecord(net().state_dict()), num_rounds=10)
    assert {"gone", "empty disk", "late"} == fleet.happened.keys()
    assert books.checked >= 30
    assert books.most > 0.03
