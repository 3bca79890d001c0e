"""The client of docs/batchnorm.md, for a server that has no data."""

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import load_submodel
from flwr_asyncdrop.submodel import recalibrate_bn

app = ClientApp()


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)]
    return nn.Sequential(*layers)


def inputs_of(device):
    generator = torch.Generator().manual_seed(device)
    return device + torch.randn(32, 3, generator=generator)


@app.query()
def statistics(message, context):
    model = load_submodel(network(), message.content["arrays"])
    recalibrate_bn(model, [inputs_of(context.node_config["partition-id"])])
    kept = {n: t for n, t in model.state_dict().items() if "running_" in n}
    return Message(RecordDict({"arrays": ArrayRecord(kept)}), reply_to=message)
