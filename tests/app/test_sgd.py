import pytest
import torch
from torch import nn

from flwr_asyncdrop.app.sgd import PlainSGD


class Net(nn.Module):
    """One layer that always has a gradient, one now and then, one never."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(4, 4) for _ in range(3))
        self.never.requires_grad_(False)

    def forward(self, x, both):
        hidden = self.never(self.always(x)).tanh()
        return self.sometimes(hidden) if both else hidden


def trained(optimiser, steps, **settings):
    torch.manual_seed(0)
    model = Net()
    optimiser = optimiser(model.parameters(), **settings)
    for step in range(steps):
        optimiser.zero_grad()
        model(torch.randn(8, 4), step % 3 == 1).square().sum().backward()
        optimiser.step()
    return model.state_dict()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_the_same_as_pytorchs_bit_for_bit(momentum, steps):
    settings = {"steps": steps, "lr": 0.05, "momentum": momentum}
    ours = trained(PlainSGD, **settings)
    theirs = trained(torch.optim.SGD, **settings)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not torch.equal(
        ours["always.weight"],
        trained(PlainSGD, 0, lr=0.05, momentum=0.0)["always.weight"],
    )
