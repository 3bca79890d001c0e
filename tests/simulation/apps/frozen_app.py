"""A client whose backbone does not train, as docs/frozen.md shows it."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import FrozenMod, load_submodel
from flwr_asyncdrop.wire import read_task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 2)
        self.backbone.requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x))


def build():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def train(message, context):
    model = load_submodel(Net(), message.content["arrays"])
    seed = read_task(message).seed
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    model(x).square().mean().backward()
    with torch.no_grad():
        model.head.weight -= 0.1 * model.head.weight.grad
    arrays, metrics = ArrayRecord(model.state_dict()), {"num-examples": 8}
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


def evaluate(message, context):
    model = load_submodel(Net(), message.content["arrays"])
    total = sum(float(tensor.abs().sum()) for tensor in model.state_dict().values())
    metrics = MetricRecord({"num-examples": 8, "size": total})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def app_with(mod):
    app = ClientApp(mods=[mod])
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def asking():
    """Return the app of devices that get the backbone from the server."""
    return app_with(FrozenMod())


def having():
    """Return the app of devices that have the backbone."""
    return app_with(FrozenMod(lambda context: build()))
