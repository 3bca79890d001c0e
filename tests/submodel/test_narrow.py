"""The narrower module is built from shapes alone."""

import pickle

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel import extract, load_submodel, narrow, plan_submodels
from tests.submodel.networks import (
    Block,
    Encoder,
    Recurrent,
    ResidualNet,
    SeparableConv,
    Tied,
    Upsampling,
    images,
    seeded,
    tokens,
    vectors,
)
from tests.submodel.silencing import random_keep


def submodel_state(model, inputs, seed=1, rate=0.5):
    plan = plan_submodels(model, inputs)
    indices = plan.indices(random_keep(plan, seed, rate))
    return extract(model.state_dict(), indices)


def shapes_of(state):
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def test_takes_shapes_and_nothing_else():
    model = seeded(lambda: ResidualNet([4, 6], 4))
    state = submodel_state(model, images(1, 4))

    small = narrow(model, shapes_of(state))

    assert shapes_of(small.state_dict()) == shapes_of(state)
    assert [type(m) for m in small.modules()] == [type(m) for m in model.modules()]
    assert all(p.requires_grad for p in small.parameters())
    assert small(images(1, 4)).shape == (2, 3)


def test_size_attributes_follow():
    model = seeded(SeparableConv)
    shapes = shapes_of(submodel_state(model, images()))

    small = narrow(model, shapes)

    assert (small.stem.in_channels, small.stem.out_channels) == (3, 4)
    assert (small.depthwise.groups, small.depthwise.out_channels) == (4, 4)
    assert (small.norm.num_groups, small.norm.num_channels) == (2, 6)
    assert (small.grouped.groups, small.grouped.in_channels) == (1, 6)
    assert (small.head.in_features, small.head.out_features) == (4, 3)
    assert (model.stem.out_channels, model.norm.num_groups) == (8, 4)


@pytest.mark.parametrize(
    ("build", "inputs", "module", "attributes"),
    [
        (Recurrent, tokens(), "rnn", {"input_size": 3, "hidden_size": 4}),
        (Recurrent, tokens(), "embedding", {"embedding_dim": 3}),
        (Encoder, tokens(), "layers.layers.0.self_attn", {"num_heads": 2}),
        (Upsampling, vectors(), "up", {"in_channels": 2, "out_channels": 3}),
        (lambda: ResidualNet([4], 4), images(1), "blocks.0.bn1", {"num_features": 2}),
    ],
)
def test_size_attributes_of(build, inputs, module, attributes):
    model = seeded(build)

    small = load_submodel(model, submodel_state(model, inputs))

    found = vars(small.get_submodule(module))
    assert {name: found[name] for name in attributes} == attributes


def test_tensors_that_are_tied_stay_tied():
    model = seeded(Tied)

    small = load_submodel(model, submodel_state(model, tokens()))

    assert small.decoder.weight is small.embedding.weight
    assert small.decoder.weight is not model.decoder.weight
    assert len(list(small.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda: ResidualNet([4, 6], 4), images(1, 4)),
        (Recurrent, tokens()),
        (Encoder, tokens()),
    ],
)
def test_pickles_with_its_scaling(build, inputs):
    model = seeded(build).eval()
    small = load_submodel(model, submodel_state(model, inputs), scale=True)

    copied = pickle.loads(pickle.dumps(small))  # noqa: S301 (just pickled)

    torch.testing.assert_close(copied(inputs), small(inputs), rtol=0, atol=0)


def test_lstm_trains():
    """Its flattened weights are the parameters that an optimiser steps on."""
    model = seeded(Recurrent)
    small = load_submodel(model, submodel_state(model, tokens()))
    before = small(tokens())
    optimiser = torch.optim.SGD(small.rnn.parameters(), lr=1.0)

    before.sum().backward()
    optimiser.step()

    assert not torch.allclose(small(tokens()), before)


def test_full_shapes_are_a_plain_load():
    model = seeded(lambda: ResidualNet([3], 3)).eval()
    state = {k: v + 1 for k, v in model.state_dict().items()}
    before = {k: v.clone() for k, v in model.state_dict().items()}

    loaded = load_submodel(model, state, scale=True)

    assert all(torch.equal(v, state[k]) for k, v in loaded.state_dict().items())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_pre_hooks for m in loaded.modules())
    assert not loaded.training
    shared = {t.data_ptr() for s in (state, before) for t in s.values()}
    assert not shared & {t.data_ptr() for t in loaded.state_dict().values()}


def test_other_attributes_and_buffers_are_copied():
    class Net(nn.Sequential):
        pass

    model = Net(nn.Linear(5, 4), nn.Linear(4, 3))
    model.notes = ["a"]
    model.register_buffer("mean", torch.ones(5), persistent=False)
    for parameter in model[0].parameters():
        parameter.requires_grad = False

    small = load_submodel(model, submodel_state(model, vectors()))

    assert small.notes == ["a"]
    assert small.notes is not model.notes
    assert torch.equal(small.mean, model.mean)
    assert not small[0].weight.requires_grad
    assert small[1].weight.requires_grad


def test_full_tensors_are_never_copied(monkeypatch):
    model = seeded(lambda: ResidualNet([4, 6], 4))
    shapes = shapes_of(submodel_state(model, images(1, 4)))
    copied = []
    monkeypatch.setattr(nn.Parameter, "__deepcopy__", lambda *_: copied.append(1))

    narrow(model, shapes)

    assert copied == []


def test_device_and_precision_are_the_models():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).to("meta", torch.bfloat16)
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    shapes |= {"0.weight": (2, 5), "0.bias": (2,), "1.weight": (3, 2)}

    small = narrow(model, shapes)

    assert small[0].weight.device.type == "meta"
    assert small[0].weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv1.weight": None}, "also needs the tensor conv1.weight"),
        ({"extra": (1,)}, "does not have a tensor extra"),
        ({"bn1.weight": (5,)}, r"bn1.weight has shape \(5,\), .* from \(4,\)"),
        ({"bn1.weight": (0,)}, r"bn1.weight has shape \(0,\), .* from \(4,\)"),
        ({"bn1.weight": (4, 1)}, r"bn1.weight has shape \(4, 1\)"),
    ],
)
def test_arrays_that_are_no_submodel(change, message):
    model = Block(3, 3, 4)
    shapes = shapes_of(model.state_dict()) | change
    state = {k: torch.zeros(v) for k, v in shapes.items() if v is not None}

    with pytest.raises(ShapeError, match=message) as caught:
        load_submodel(model, state)

    assert str(caught.value).startswith("these arrays are not a submodel of Block: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "adapters_alone"),
    [
        (["conv1.lora_A.weight", "conv1.lora_B.weight"], True),
        (["conv1.lora_A.weight", "conv1.weight"], False),
        (["fc.weight"], False),
    ],
)
def test_what_is_said_of_adapters_is_said_of_them_alone(names, adapters_alone):
    with pytest.raises(ShapeError, match="these arrays are not a submodel") as caught:
        load_submodel(Block(3, 3, 4), {name: torch.zeros(2) for name in names})
    assert ("they are adapters alone" in str(caught.value)) is adapters_alone


def test_nothing_of_the_full_model_is_left_in_a_narrow_one():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    shapes = shapes_of(model.state_dict()) | {"0.weight": (3, 2)}

    small = narrow(model, shapes)

    assert all(not tensor.any() for tensor in small.state_dict().values())
