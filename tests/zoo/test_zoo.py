"""The zoo: plan, extract, train a step, merge; what cannot be dropped has a reason."""

import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel import (
    Indices,
    Plan,
    State,
    droppable_share,
    extract,
    load_submodel,
    merge_,
    plan_submodels,
    silenced,
)
from tests.submodel.silencing import random_keep, run
from tests.zoo.catalogue import HAND_WRITTEN, VISION, Entry, vision_entry

# The share of elements that lie at a droppable unit. What is covered stays so.
ALMOST_ALL = 0.997
LEAST_SHARE = {
    "convnext_tiny": 0.93,
    "shufflenet_v2_x1_0": 0.98,
    "vit_b_16": 0.99,
    "swin_t": 0.62,
    "transformer_encoder": 0.84,
    "transformer_post_norm": 0.60,
    "small_vit": 0.90,
    "mlp_mixer": 0.88,
    "gpt_tied": 0.68,
    "rms_norm_gqa": 0.67,
    "data_dependent": 0.92,
}

# Weights that one step does not reach, full model or not: a branch that is not taken,
# the recurrence of a direction of which only the first step is used.
IDLE = {
    "data_dependent": {"wild.0.weight"},
    "lstm_stacked_bidirectional": {"rnn.weight_hh_l1_reverse"},
}

READABLE = re.compile(
    "part of the model's output"
    "|normalised together by aten"
    "|combined with positions always kept in aten"
    "|meets positions that are always kept in aten"
    "|reduced over by aten.mean: the result would change"
    "|cut into unequal parts by aten.slice"
    "|stand or fall together: none of them can go alone"
    "|meet no other tensor: used last by aten"
    "|not used in any traced forward pass"
    "|positions that aten.index picks by number"
    "|rows that aten.embedding looks up by number"
    "|used after a Python value was read from the data"
    "|a narrower model does not run .RuntimeError: shape"
)


@dataclass(frozen=True)
class Trained:
    """A model, and what one task at 25 % made of it.

    Attributes
    ----------
    full, merged : dict of str to Tensor
        The model's state before and after.
    sub : dict of str to Tensor
        The submodel's, trained.
    """

    model: nn.Module
    inputs: Tensor
    plan: Plan
    indices: Indices
    full: State
    sub: State
    merged: State


def train(entry: Entry) -> Trained:
    """Plan, extract at 25 %, train one step, merge."""
    model = entry.model().eval()
    inputs = entry.inputs(batch=2)
    plan = plan_submodels(model, inputs[:1])
    indices = plan.indices(random_keep(plan, seed=0, rate=0.25))
    full = model.state_dict()
    small = load_submodel(model, extract(full, indices)).train()
    optimiser = torch.optim.SGD(small.parameters(), lr=1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of dropout
        (small(inputs) - 1).square().mean().backward()
    optimiser.step()
    sub = small.state_dict()
    merged = {name: tensor.clone() for name, tensor in full.items()}
    merge_(merged, sub, indices, 1.0)
    return Trained(model, inputs, plan, indices, full, sub, merged)


@pytest.fixture(scope="module", params=[*VISION, *HAND_WRITTEN])
def trained(request: pytest.FixtureRequest) -> tuple[str, Trained]:
    """Return each model in turn, trained once for all tests of it."""
    name = request.param
    if name in HAND_WRITTEN:
        return name, train(HAND_WRITTEN[name])
    vision = request.getfixturevalue("vision_models")
    return name, train(vision_entry(vision, name))


def kept(shape: tuple[int, ...], dims: dict[int, Tensor]) -> Tensor:
    """Return a mask of `shape`, True where all dims are kept."""
    mask = torch.ones(shape, dtype=torch.bool)
    for dim, positions in dims.items():
        dropped = torch.ones(shape[dim], dtype=torch.bool)
        dropped[positions] = False
        mask.index_fill_(dim, dropped.nonzero().squeeze(1), False)
    return mask


def test_share_that_can_be_dropped(trained: tuple[str, Trained]) -> None:
    name, task = trained

    assert droppable_share(task.plan) >= LEAST_SHARE.get(name, ALMOST_ALL)
    counts = [sum(map(torch.numel, state.values())) for state in (task.sub, task.full)]
    assert counts[0] < 0.9 * counts[1]


def test_submodel_computes_what_is_left(trained: tuple[str, Trained]) -> None:
    _, task = trained
    sub = extract(task.full, task.indices)
    small = load_submodel(task.model, sub, scale=False).eval()

    with torch.no_grad():
        expected = run(task.model, silenced(task.full, task.indices), task.inputs)
        difference = (small(task.inputs) - expected).abs().max()

    assert difference <= 1e-4 * expected.abs().max()


def test_merge_writes_what_was_trained_and_nothing_else(
    trained: tuple[str, Trained],
) -> None:
    _, task = trained

    for key, merged in task.merged.items():
        mask = kept(tuple(merged.shape), task.indices.get(key, {}))
        assert torch.equal(merged[~mask], task.full[key][~mask]), key
        assert torch.equal(merged[mask], task.sub[key].reshape(-1)), key


def test_every_weight_learns(trained: tuple[str, Trained]) -> None:
    name, task = trained
    weights = [key for key in task.plan.parameters if task.full[key].dim() > 1]

    idle = {key for key in weights if torch.equal(task.merged[key], task.full[key])}

    assert idle == IDLE.get(name, set())


def test_reasons_are_readable(trained: tuple[str, Trained]) -> None:
    _, task = trained

    for place, reason in task.plan.left_out.items():
        assert place in task.full or task.model.get_submodule(place)
        assert READABLE.search(reason), f"{place}: {reason}"
    report = task.plan.report()
    assert all(group.name in report for group in task.plan.groups)
