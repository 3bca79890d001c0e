"""Instance normalisation without tensors, of whose width torch warns."""

import copy

import pytest
import torch
from torch import nn

from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels
from flwr_asyncdrop.submodel.narrowing.in_place import load_in_place
from tests.submodel.agreement import planned

DIMS = {
    1: (nn.Conv1d, nn.InstanceNorm1d),
    2: (nn.Conv2d, nn.InstanceNorm2d),
    3: (nn.Conv3d, nn.InstanceNorm3d),
}


def net(dim, **kwargs):
    conv, norm = DIMS[dim]
    return nn.Sequential(conv(2, 6, 3, padding=1), norm(6, **kwargs), conv(6, 3, 1))


# Warnings are errors here.
@pytest.mark.parametrize(
    ("dim", "batch", "kwargs"),
    [
        *((dim, batch, {}) for dim in DIMS for batch in [(), (4,)]),
        (2, (4,), {"track_running_stats": True}),
        (2, (4,), {"affine": True}),
    ],
)
def test_submodel(dim, batch, kwargs):
    x = torch.randn(*batch, 2, *[5] * dim, dtype=torch.float64)
    plan = planned(lambda: net(dim, **kwargs), (x,))
    assert [group.size for group in plan.groups] == [6]


def test_a_submodel_in_place_and_a_full_model_again():
    model, x = net(2), torch.randn(4, 2, 5, 5)
    full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = plan_submodels(model, x)
    small = extract(full, plan.indices((torch.tensor([0, 3]),)))
    load_in_place(model, small)
    again = copy.deepcopy(load_submodel(net(2), small))
    torch.testing.assert_close(model(x), again(x))
    load_in_place(model, full)
    fresh = net(2)
    fresh.load_state_dict(full)
    torch.testing.assert_close(model(x), fresh(x))
