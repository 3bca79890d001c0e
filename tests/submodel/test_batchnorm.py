"""Running statistics can be learnt anew from data."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.submodel import recalibrate_bn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.BatchNorm1d(2))


BATCHES = [
    torch.tensor([[1.0, 2.0], [3.0, 2.0]]),
    torch.tensor([[5.0, 0.0], [9.0, 4.0]]),
]


def test_statistics_are_the_average_over_the_batches():
    model = Net()
    model[0].running_mean.fill_(100)

    recalibrate_bn(model, BATCHES)

    # Means 2 and 7, 2 and 2; unbiased variances 2 and 8, 0 and 8.
    assert model[0].running_mean.tolist() == [4.5, 2.0]
    assert model[0].running_var.tolist() == [5.0, 4.0]
    assert int(model[0].num_batches_tracked) == 2


def test_nothing_else_changes():
    model = Net()
    model.train()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    parameters = [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()

    recalibrate_bn(model, iter(BATCHES))

    assert [module.training for module in model.modules()] == modes
    assert [layer.momentum for layer in (model[0], model[2])] == [0.1, 0.1]
    assert all(map(torch.equal, parameters, model.parameters()))
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_frozen_backbone_keeps_its_statistics_and_normalises_with_them():
    backbone, head = nn.BatchNorm1d(2).requires_grad_(False), nn.BatchNorm1d(2)
    backbone.running_mean.fill_(1)
    backbone.running_var.fill_(4 - backbone.eps)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    model = nn.Sequential(nn.Sequential(backbone, nn.ReLU()), head)

    recalibrate_bn(model, BATCHES, keep=[model[0]])

    assert all(
        torch.equal(backbone.state_dict()[name], before[name]) for name in before
    )
    # (x - 1) / 2 without what is negative: 0, 1 and 0.5, 0.5; then 2, 4 and 0, 1.5.
    torch.testing.assert_close(head.running_mean, torch.tensor([1.75, 0.625]))
    torch.testing.assert_close(head.running_var, torch.tensor([1.25, 0.5625]))


def test_without_batches_the_statistics_stay():
    model = Net()
    model[0].running_mean.fill_(3)

    recalibrate_bn(model, [])

    assert model[0].running_mean.tolist() == [3.0, 3.0]


class _Domains(nn.Module):
    """A normalisation for each of two kinds of inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)

    def forward(self, x, second=False):
        return self.second(x) if second else self.first(x)


def test_a_layer_that_no_batch_reaches_keeps_its_statistics():
    model = _Domains()
    model(BATCHES[0], second=True)
    before = {name: t.clone() for name, t in model.second.state_dict().items()}

    recalibrate_bn(model, BATCHES)

    assert model.first.running_mean.tolist() == [4.5, 2.0]
    after = model.second.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_statistics_come_back_after_an_error():
    model = Net()
    model(BATCHES[0])
    before = {name: t.clone() for name, t in model.state_dict().items()}

    with pytest.raises(ValueError, match="more than 1 value"):
        recalibrate_bn(model, [*BATCHES, torch.ones(1, 2)])

    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_without_batch_norm_the_data_is_not_touched():
    def explode():
        raise AssertionError("the batches were asked for")
        yield

    recalibrate_bn(nn.Linear(2, 2), explode())


def test_modes_come_back_after_an_error():
    model = Net().train()

    with pytest.raises((RuntimeError, ValueError)):
        recalibrate_bn(model, [torch.ones(2, 7)])

    assert all(module.training for module in model.modules())
    assert model[0].momentum == 0.1


def test_statistics_of_devices_average_to_those_of_all_their_batches():
    """So a server without data can ask its devices (docs/batchnorm.md)."""
    together, states = Net(), []
    for batch in BATCHES:
        device = Net()
        recalibrate_bn(device, [batch])
        states.append(device.state_dict())

    recalibrate_bn(together, BATCHES)

    expected = together.state_dict()
    for name in (name for name in expected if "running_" in name):
        average = torch.stack([state[name] for state in states]).mean(0)
        torch.testing.assert_close(average, expected[name])
