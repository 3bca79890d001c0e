"""Planning leaves no trace on the model or on the process."""

import random

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels, step_flops
from tests.submodel.networks import Encoder, Recurrent, ResidualNet, images, tokens


def switches():
    return (
        torch.backends.mkldnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )


def random_states():
    return torch.get_rng_state().tolist(), random.getstate()


class Noisy(ResidualNet):
    """Draws random numbers in its forward pass, and remembers what it saw."""

    def forward(self, x):
        return super().forward(x + torch.rand(()))


def untouched(model, inputs, action):
    model.train()
    model.get_submodule("head").eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tensors = [id(tensor) for tensor in model.parameters()]
    flags, states = switches(), random_states()

    action(model, inputs)

    assert [module.training for module in model.modules()] == modes
    assert [id(tensor) for tensor in model.parameters()] == tensors
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert switches() == flags
    assert random_states() == states


def test_planning():
    untouched(Noisy([3, 4], 3), images(1, 4), plan_submodels)
    untouched(Recurrent(), tokens(), plan_submodels)
    untouched(Encoder(), tokens(), plan_submodels)


def test_counting_flops():
    untouched(Noisy([3, 4], 3), images(1, 4).float(), step_flops)


class Counting(ResidualNet):
    """Counts its passes in every mode, in a buffer and in an attribute."""

    def __init__(self):
        super().__init__([3, 4], 3)
        self.register_buffer("passes", torch.tensor(0))
        self.began = False

    def forward(self, x):
        self.passes += 1
        self.began = True
        return super().forward(x)


@pytest.mark.parametrize("action", [plan_submodels, step_flops])
def test_what_a_pass_in_eval_mode_changes(action):
    model = Counting()

    untouched(model, images(1, 4).float(), action)

    assert not model.began


def test_switches_are_restored_after_an_error():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("not today")

    flags = switches()

    with pytest.raises(UnsupportedModelError, match="not today"):
        plan_submodels(Fails(), torch.ones(1))
    with pytest.raises(RuntimeError, match="not today"):
        step_flops(Fails(), torch.ones(1))

    assert switches() == flags


def test_inputs_stay_as_they_are():
    class InPlace(nn.Sequential):
        def forward(self, x):
            return super().forward(x.mul_(2))

    inputs = torch.ones(1, 4)

    plan_submodels(InPlace(nn.Linear(4, 3), nn.Linear(3, 2)), inputs)

    assert torch.equal(inputs, torch.ones(1, 4))


class SharedLayer(nn.Linear):
    """Has copies of the model share it, to save memory."""

    def __deepcopy__(self, memo):
        return self


class SharedWeight(nn.Parameter):
    """The same of a tensor alone."""

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize("part", ["1", "1.weight"])
def test_what_copies_share_is_not_written_on(part):
    layer = (SharedLayer if part == "1" else nn.Linear)(6, 6)
    if part == "1.weight":
        layer.weight = SharedWeight(layer.weight.detach())
    model = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 2)).eval()
    before = layer.weight.detach().clone()

    with pytest.raises(UnsupportedModelError, match=f"copies share {part} with it"):
        plan_submodels(model, torch.ones(1, 4))

    assert torch.equal(layer.weight, before)
    assert not any(module.training for module in model.modules())


def test_a_model_of_which_there_are_no_copies_is_named():
    with pytest.raises(UnsupportedModelError, match="copies share all of it, as a"):
        plan_submodels(SharedLayer(4, 6), torch.ones(1, 4))
