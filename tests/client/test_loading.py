import threading
from functools import partial

import pytest
import torch
from torch import nn

from flwr_asyncdrop import load_lora, load_submodel
from flwr_asyncdrop.exceptions import (
    ConfigError,
    ShapeError,
    UnsupportedModelError,
)
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.submodel import extract, plan_submodels
from flwr_asyncdrop.submodel import load_submodel as load_a_copy
from flwr_asyncdrop.wire import to_record
from tests.masks.choosing import choose
from tests.runs import mlp


def part_of(model, rate=0.5):
    plan = plan_submodels(model, torch.zeros(1, 4))
    keep = choose(
        RandomMask(rate), plan.groups, None, 0, 1, torch.Generator().manual_seed(0)
    )
    return extract(model.state_dict(), plan.indices(keep))


def test_full_arrays_give_the_full_model():
    server, mine = mlp(seed=1), mlp(seed=2)
    loaded = load_submodel(mine, to_record(server.state_dict()))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(x), server(x))


def test_a_submodel_is_really_narrower_and_has_the_weights_that_were_sent():
    sent = part_of(mlp(seed=1))
    loaded = load_submodel(mlp(seed=2), to_record(sent))
    assert (loaded[0].out_features, loaded[2].in_features) == (3, 3)
    state = loaded.state_dict()
    assert list(state) == list(sent)
    assert all(torch.equal(state[name], tensor) for name, tensor in sent.items())


def test_it_is_the_users_own_model_that_is_loaded():
    mine = mlp(seed=2)
    parameters = list(mine.parameters())
    loaded = load_submodel(mine, to_record(part_of(mlp(seed=1))))
    assert loaded is mine
    assert all(a is b for a, b in zip(mine.parameters(), parameters, strict=True))


def test_the_assignment_may_be_forgotten():
    mine, server = mlp(seed=2), mlp(seed=1)
    for sent in (part_of(server), server.state_dict()):
        load_submodel(mine, to_record(sent))
        assert all(torch.equal(mine.state_dict()[n], t) for n, t in sent.items())


def test_the_loaded_model_can_be_trained():
    loaded = load_submodel(mlp(), to_record(part_of(mlp(seed=1))))
    loaded(torch.ones(2, 4)).sum().backward()
    assert all(p.grad is not None and p.is_leaf for p in loaded.parameters())


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("4.bias"),
        lambda state: state.update({"5.bias": torch.zeros(3)}),
        lambda state: state.update({"4.bias": torch.zeros(4)}),
    ],
)
def test_arrays_of_another_model_are_refused_in_one_line(change):
    state = part_of(mlp())
    change(state)
    with pytest.raises(ShapeError) as caught:
        load_submodel(mlp(), to_record(state))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [load_submodel, load_lora])
@pytest.mark.parametrize("given", [mlp().state_dict(), mlp(), None], ids=type)
def test_what_is_no_record_of_arrays_is_refused_in_one_line(load, given):
    name = type(given).__name__
    with pytest.raises(ConfigError, match=f"of type {name}: pass the ArrayRecord"):
        load(mlp(), given)


@pytest.mark.parametrize(
    ("wrap", "inner"),
    [
        (partial(torch.compile, backend="eager"), "_orig_mod"),
        (nn.DataParallel, "module"),
    ],
)
def test_a_wrapper_is_told_from_another_model(wrap, inner):
    """The server's log said that client and server had built different modules."""
    sent = part_of(mlp(seed=1))
    with pytest.raises(ShapeError, match=rf"load the model inside of it, \.{inner},"):
        load_submodel(wrap(mlp(seed=2)), to_record(sent))
    wrapped = wrap(mlp(seed=2))
    load_submodel(getattr(wrapped, inner), to_record(sent))
    assert wrapped(torch.zeros(2, 4)).shape == (2, 3)


def test_a_model_that_cannot_be_copied_is_refused_in_one_line():
    """As one with a lock of its own, or one that FSDP has sharded."""
    mine, sent = mlp(seed=2), part_of(mlp(seed=1))
    mine.lock = threading.Lock()
    with pytest.raises(UnsupportedModelError, match="cannot be copied") as caught:
        load_submodel(mine, to_record(sent))
    assert "\n" not in str(caught.value)
    assert mine[0].out_features == 6
    with pytest.raises(UnsupportedModelError, match="cannot be copied"):
        load_a_copy(mine, sent)
