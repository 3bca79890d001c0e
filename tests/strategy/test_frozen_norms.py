"""A frozen backbone with batch normalisation, below a head that a client keeps."""

import pytest
import torch
from flwr.app import MessageType
from torch import nn

from flwr_asyncdrop import (
    AsyncDrop,
    FedBuff,
    load_personal,
    load_submodel,
    save_personal,
    speed_levels,
    wire,
)
from flwr_asyncdrop.seeding import torch_generator
from tests.runs import answer, record
from tests.strategy.frozen_runs import Nodes, everything, weights

pytestmark = pytest.mark.usefixtures("no_settling")

STATISTICS = [f"backbone.1.{n}" for n in ("running_mean", "running_var")]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        self.backbone.requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x))


def net():
    torch.manual_seed(0)
    return Net()


def client(*, in_eval):
    def train(message, context, net):
        model = load_submodel(net(), message.content["arrays"])
        load_personal(context, model, message, "head.2")
        if message.metadata.message_type == MessageType.EVALUATE:
            total = sum(float(t.abs().sum()) for t in model.state_dict().values())
            return answer(message, {}, size=total)
        if in_eval:
            model.backbone.eval()
        task = wire.read_task(message)
        x = torch.randn(8, 4, generator=torch_generator(task.seed, "train"))
        model(x).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.2 * parameter.grad
        save_personal(context, model, message, "head.2")
        return answer(message, model.state_dict())

    return train


@pytest.mark.parametrize("in_eval", [False, True])
@pytest.mark.parametrize(
    ("strategy", "mode"),
    [(FedBuff, "sliced"), (AsyncDrop, "sliced"), (AsyncDrop, "masked")],
)
def test_it_is_as_if_all_had_travelled(strategy, mode, in_eval):
    found = []
    for trainable in (None, everything):
        nodes = Nodes(net, train=client(in_eval=in_eval), node_ids=range(1, 4))
        options = {"mode": mode} if strategy is AsyncDrop else {}
        run = strategy(
            net(),
            torch.zeros(2, 4),
            trainable=trainable,
            fleet=speed_levels,
            seed=1,
            **options,
        )
        result = run.start(nodes.grid, record(net().state_dict()), num_rounds=2)
        metrics = [dict(m) for m in result.evaluate_metrics_clientapp.values()]
        found.append((weights(result.arrays), metrics))
        assert len(metrics) == 2
    assert found[0] == found[1]
    initial = weights(record(net().state_dict()))
    frozen = ["backbone.0.weight", "backbone.1.weight", *(STATISTICS * in_eval)]
    assert all(found[0][0][name] == initial[name] for name in frozen)
    moved = ["head.0.weight", "head.2.weight", *(STATISTICS * (not in_eval))]
    assert all(found[0][0][name] != initial[name] for name in moved)
