"""A submodel computes what the full model computes with units silenced."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from flwr_asyncdrop.submodel import UnitGroup, extract, load_submodel, plan_submodels
from tests.nightly import examples
from tests.submodel.networks import (
    DenseNet,
    Encoder,
    Gated,
    Recurrent,
    ResidualNet,
    SeparableConv,
    Split,
    Tied,
    Upsampling,
    images,
    seeded,
    tokens,
    vectors,
)
from tests.submodel.silencing import random_keep, run, silenced

ACTIVATIONS = [nn.ReLU, nn.Sigmoid, nn.GELU, nn.Tanh]
FEW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def mlps(draw):
    widths = draw(st.lists(st.integers(2, 6), min_size=1, max_size=3))
    activation = draw(st.sampled_from(ACTIVATIONS))
    bias = draw(st.booleans())
    norm = draw(st.booleans())

    def build():
        layers = []
        for before, after in zip([5, *widths], widths, strict=False):
            layers.append(nn.Linear(before, after, bias=bias))
            layers += [nn.BatchNorm1d(after)] if norm else []
            layers.append(activation())
        return nn.Sequential(*layers, nn.Linear(widths[-1], 3))

    return seeded(build, draw(st.integers(0, 99))), vectors(5, 4)


@st.composite
def cnns(draw):
    widths = draw(st.lists(st.integers(2, 5), min_size=1, max_size=2))
    activation = draw(st.sampled_from(ACTIVATIONS))
    flatten = draw(st.booleans())
    norm = draw(st.booleans())

    def build():
        layers = []
        for before, after in zip([2, *widths], widths, strict=False):
            layers.append(nn.Conv2d(before, after, 3, padding=1))
            layers += [nn.BatchNorm2d(after)] if norm else []
            layers += [activation(), nn.MaxPool2d(2)]
        size = 8 // 2 ** len(widths) if flatten else 1
        layers += [] if flatten else [nn.AdaptiveAvgPool2d(1)]
        features = widths[-1] * size**2
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3))

    return seeded(build, draw(st.integers(0, 99))), images(2, 8, 3)


@st.composite
def residual_nets(draw):
    widths = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    inner = draw(st.integers(2, 4))
    seed = draw(st.integers(0, 99))
    return seeded(lambda: ResidualNet(widths, inner), seed), images(1, 4, 3)


NETWORKS = st.one_of(mlps(), cnns(), residual_nets())
SEEDS = st.integers(0, 99)


def narrowed(model, plan, indices):
    return load_submodel(model, extract(model.state_dict(), indices), scale=False)


@FEW
@given(network=NETWORKS, seed=SEEDS, scope=st.sampled_from(["all", "internal"]))
def test_outputs_in_eval_mode(network, seed, scope):
    model, inputs = network
    model.eval()
    plan = plan_submodels(model, inputs, scope=scope)
    indices = plan.indices(random_keep(plan, seed))

    output = narrowed(model, plan, indices)(inputs)

    expected = run(model, silenced(model, plan, indices), inputs)
    torch.testing.assert_close(output, expected)


@FEW
@given(network=NETWORKS, seed=SEEDS)
def test_gradients_and_statistics_in_train_mode(network, seed):
    model, inputs = network
    plan = plan_submodels(model, inputs)
    indices = plan.indices(random_keep(plan, seed))
    small = narrowed(model, plan, indices)
    state = silenced(model, plan, indices)

    small(inputs).square().sum().backward()
    run(model, state, inputs).square().sum().backward()

    gradients = {name: p.grad for name, p in model.named_parameters()}
    parameters = {name: indices[name] for name in indices if name in gradients}
    for name, gradient in extract(gradients, parameters).items():
        torch.testing.assert_close(small.get_parameter(name).grad, gradient)
    statistics = extract(state, indices)
    for name, buffer in small.named_buffers():
        torch.testing.assert_close(buffer, statistics[name])


ARCHITECTURES = {
    "separable": (SeparableConv, images(), {"stem": 8, "pointwise": 2}),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 2, 1)
        ),
        images(),
        {"0": 4},
    ),
    "dense": (DenseNet, images(), {"stem": 4, "layer": 5}),
    "lstm": (Recurrent, tokens(), {"embedding": 6, "rnn": 8}),
    "stacked lstm": (
        lambda: Recurrent(num_layers=2, bidirectional=True),
        tokens(),
        {"embedding": 6, "rnn": 8},
    ),
    "gru": (lambda: Recurrent(nn.GRU), tokens(), {"embedding": 6, "rnn": 8}),
    "rnn": (
        lambda: Recurrent(nn.RNN, bias=False),
        tokens(),
        {"embedding": 6, "rnn": 8},
    ),
    "tied": (Tied, tokens(), {"embedding": 8}),
    "encoder": (
        Encoder,
        tokens(),
        {
            "layers.layers.0.self_attn": 4,
            "layers.layers.0.linear1": 12,
            "layers.layers.1.self_attn": 4,
            "layers.layers.1.linear1": 12,
        },
    ),
    "gated": (Gated, vectors(), {"both": 6}),
    "upsampling": (Upsampling, vectors(), {"start": 4, "up": 6}),
    "split": (Split, vectors(), {"start": 4}),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name):
    build, inputs, groups = ARCHITECTURES[name]
    model = seeded(build).eval()
    plan = plan_submodels(model, inputs)
    indices = plan.indices(random_keep(plan, seed=3))

    output = narrowed(model, plan, indices)(inputs)

    assert {group.name: group.size for group in plan.groups} == groups
    expected = run(model, silenced(model, plan, indices), inputs)
    torch.testing.assert_close(output, expected)


def test_hidden_units_are_internal_even_if_a_state_is_handed_over():
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.LSTM(5, 4, batch_first=True)
            self.decoder = nn.LSTM(5, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            _, state = self.encoder(x)
            return self.head(self.decoder(x, state)[0])

    plan = plan_submodels(Translator(), torch.randn(1, 3, 5), scope="internal")

    assert plan.groups == (UnitGroup("encoder", 4, "internal"),)
