"""`load_in_place` gives what `load_submodel` gives, in the model that there is."""

import copy
import logging
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm
from torch.nn.utils.parametrize import register_parametrization

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel import (
    extract,
    load_in_place,
    load_submodel,
    plan_blocks,
    plan_submodels,
)
from tests.runs import mlp, residual_mlp


class Tied(nn.Module):
    """The decoder is the embedding itself."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.inner, self.decoder = nn.Linear(8, 8), nn.Linear(8, 7, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens):
        return self.decoder(self.inner(self.embedding(tokens)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(5, 8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Configured(nn.Module):
    """Attention whose heads are numbers in a configuration that modules share."""

    class Config:
        num_attention_heads = 4

    class Attention(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.query, self.key = nn.Linear(6, 8), nn.Linear(6, 8)
            self.value, self.out = nn.Linear(6, 8), nn.Linear(8, 6)
            self.head_dim = 2

        def forward(self, x):
            def heads(y):
                shape = *y.shape[:2], -1, self.head_dim
                return y.view(shape).transpose(1, 2)

            q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(y.transpose(1, 2).flatten(2))

    def __init__(self):
        super().__init__()
        config = self.Config()
        config.num_attention_heads = 4
        self.first, self.second = self.Attention(config), self.Attention(config)

    def forward(self, x):
        return self.second(self.first(x).relu())


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.GroupNorm(4, 8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def normalised(norm):
    return nn.Sequential(norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))


MODELS = {
    "mlp": (mlp, torch.ones(2, 4)),
    "convolutional": (convolutional, torch.ones(2, 3, 8, 8)),
    "tied": (Tied, torch.ones(2, 3, dtype=torch.int64)),
    "recurrent": (Recurrent, torch.ones(2, 3, 5)),
    "configured": (Configured, torch.ones(2, 3, 6)),
    "encoder": (encoder, torch.ones(2, 3, 8)),
    "weight-norm": (lambda: normalised(weight_norm), torch.ones(2, 4)),
    "parametrized": (
        lambda: normalised(parametrizations.weight_norm),
        torch.ones(2, 4),
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def submodels(build, inputs, count=4):
    """Return states of random widths of a model with other weights, and its full."""
    torch.manual_seed(1)
    model = build()
    plan = plan_submodels(model, inputs)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        keep = tuple(
            torch.randperm(group.size, generator=generator)[
                : max(group.least, int(torch.randint(1, group.size + 1, (1,))))
            ]
            .sort()
            .values
            for group in plan.groups
        )
        yield extract(model.state_dict(), plan.indices(keep))
    yield {name: tensor.clone() for name, tensor in model.state_dict().items()}


def trained(model, inputs):
    """Return the outputs and the gradients of a model."""
    model.zero_grad(set_to_none=True)
    outputs = model(inputs)
    outputs.square().sum().backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return outputs.detach(), grads


@pytest.mark.parametrize("name", MODELS)
def test_any_width_after_any_other_is_the_new_object_that_load_submodel_makes(name):
    build, inputs = MODELS[name]
    mine, full = build(), build()
    parameters, modules = list(mine.parameters()), list(mine.modules())
    states = list(submodels(build, inputs))
    for state in [*states, *states[:2]]:
        torch.manual_seed(3)
        expected = trained(load_submodel(full, state), inputs)
        torch.manual_seed(3)
        found = trained(load_in_place(mine, state), inputs)
        assert torch.equal(found[0], expected[0])
        for one, other in zip(found[1], expected[1], strict=True):
            assert one is other is None or torch.equal(one, other)
        assert all(a is b for a, b in zip(mine.parameters(), parameters, strict=True))
        assert all(a is b for a, b in zip(mine.modules(), modules, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_back_at_full_size_nothing_is_left_of_narrower_days(name):
    build, inputs = MODELS[name]
    mine, fresh = build(), build()
    for state in submodels(build, inputs):
        load_in_place(mine, state)
    fresh.load_state_dict(state)
    for one, other in zip(mine.modules(), fresh.modules(), strict=True):
        assert type(one).__name__ == type(other).__name__
        assert len(one._forward_pre_hooks) == len(other._forward_pre_hooks)
        for attribute, value in vars(other).items():
            if isinstance(value, int | str | tuple):
                assert vars(one)[attribute] == value, attribute
    assert "forward" not in {key for m in mine.modules() for key in vars(m)}


def test_blocks_are_left_out_and_come_back():
    inputs, full = torch.ones(2, 4), residual_mlp(1)
    plan, mine = plan_blocks(full, inputs), residual_mlp()
    for kept in ([0, 2], [1], [0, 1, 2, 3, 4]):
        keep = (torch.tensor(kept),)
        state = extract(full.state_dict(), plan.indices(keep))
        expected = load_submodel(residual_mlp(), state)(inputs)
        assert torch.equal(load_in_place(mine, state)(inputs), expected)


@pytest.fixture
def log(caplog, monkeypatch):
    """What is logged; Flower's logger does not hand its records on."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return caplog


def first_state():
    return next(submodels(mlp, torch.ones(2, 4)))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_that_was_built_before_trains_the_model(optimizer):
    model = mlp()
    steps = optimizer(model.parameters(), lr=0.1)
    load_in_place(model, first_state())
    before = copy.deepcopy(model.state_dict())
    model(torch.ones(2, 4)).square().sum().backward()
    steps.step()
    changed = [not torch.equal(before[n], t) for n, t in model.state_dict().items()]
    assert all(changed[-2:])


def test_what_a_user_has_set_in_the_model_stays():
    model, seen = mlp().eval(), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model[2].weight.requires_grad_(False)
    for state in submodels(mlp, torch.ones(2, 4), 2):
        load_in_place(model, state)
        model.note = "mine"
    model(torch.ones(1, 4))
    assert (seen, model.training, model.note) == ([1], False, "mine")
    assert not model[2].weight.requires_grad


def test_a_loss_that_is_still_there_does_not_matter():
    model, losses = mlp(), []
    for state in submodels(mlp, torch.ones(2, 4)):
        load_in_place(model, state)
        losses.append(model(torch.ones(2, 4)).sum())
        losses[-1].backward()


def pickled(model):
    return pickle.loads(pickle.dumps(model))  # noqa: S301  # our own


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copy_of_a_narrow_model_can_be_widened(copied):
    narrow, *_, full = submodels(mlp, torch.ones(2, 4))
    model = load_in_place(mlp(), narrow)
    other = load_in_place(copied(model), full)
    assert other[0].out_features == 6
    assert model[0].out_features == len(narrow["0.weight"])
    expected = load_submodel(mlp(), full)(torch.ones(1, 4))
    assert torch.equal(other(torch.ones(1, 4)), expected)


def one_unit():
    plan = plan_submodels(mlp(), torch.zeros(2, 4))
    return extract(mlp(1).state_dict(), plan.indices((torch.tensor([0]),) * 2))


@pytest.mark.parametrize("before", [lambda: mlp(1).state_dict(), one_unit])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adafactor])
def test_state_of_other_shapes_is_named(optimizer, before):
    model = mlp()
    steps = optimizer(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(2, 4)).sum().backward()
        steps.step()
        steps.zero_grad()

    load_in_place(model, {n: t.clone() for n, t in before().items()})
    step()
    load_in_place(model, first_state())
    with pytest.raises(ShapeError, match="build the optimizer anew for each task"):
        step()
    steps.state.clear()
    step()


@pytest.mark.parametrize("optimizer", ["SGD", "Adafactor"])
def test_state_of_units_that_may_be_others_is_warned_of_once_a_task(optimizer, log):
    model = mlp()
    momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **momentum)
    complaint = f"the {optimizer} optimizer has state from an earlier task"
    for task in range(3):
        load_in_place(model, first_state())
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            steps.step()
        assert log.text.count(complaint) == task


@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.Adafactor]
)
def test_state_of_this_task_is_none_of_an_earlier_one(optimizer, log):
    model = load_in_place(mlp(), first_state())
    steps = optimizer(model.parameters())
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        steps.step()
        load_in_place(mlp(), first_state())  # such as a teacher's
    assert "from an earlier task" not in log.text


def test_state_in_one_vector_is_of_an_earlier_task_too(log):
    model = mlp()
    steps = torch.optim.LBFGS(model.parameters())
    for task in range(2):
        load_in_place(model, first_state())
        steps.step(lambda: backward(model))
        said = log.text.count("the LBFGS optimizer has state from an earlier task")
        assert said == task


def backward(model):
    model.zero_grad()
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    return loss


def test_other_optimizers_are_left_alone():
    load_in_place(mlp(), first_state())
    other = nn.Linear(2, 2)
    steps = torch.optim.Adam(other.parameters())
    for _ in range(2):
        other(torch.ones(1, 2)).sum().backward()
        steps.step()


@pytest.mark.parametrize(
    "views",
    [lambda rows: (rows[:6], rows[:6].t()), lambda rows: (rows[:6], rows[5:])],
    ids=["the same", "a row in common"],
)
def test_views_of_one_tensor_are_refused_where_they_would_be_torn_apart(views):
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[0].weight.data, model[2].weight.data = views(torch.randn(11, 6))
    state = model.state_dict()
    load_in_place(model, {name: tensor.clone() for name, tensor in state.items()})
    small = {**state, "0.weight": torch.ones(3, 6), "0.bias": torch.ones(3)}
    small["2.weight"] = torch.ones(6, 3)
    with pytest.raises(ShapeError, match=r"0.weight and 2.weight share memory"):
        load_in_place(model, small)
    assert model[0].out_features == 6


def test_arrays_that_do_not_fit_change_nothing():
    model = mlp()
    load_in_place(model, first_state())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ShapeError, match="not a submodel of Sequential"):
        load_in_place(model, {**first_state(), "4.bias": torch.zeros(9)})
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


class TestAReplacedLayer:
    """Its head is another one, with more classes, than when it was loaded first."""

    def replaced(self, *states):
        model = mlp()
        for state in states:
            load_in_place(model, state)
        model[4] = nn.Linear(model[4].in_features, 9)
        return model

    def test_at_full_size_it_is_a_new_model(self):
        narrow, *_, full = submodels(mlp, torch.ones(2, 4))
        model = self.replaced(narrow, full)
        state = {**narrow, "4.weight": torch.ones(9, len(narrow["2.bias"]))}
        load_in_place(model, {**state, "4.bias": torch.ones(9)})
        assert model[4].out_features == 9

    def test_while_it_is_narrow_nobody_knows_what_it_was(self):
        model = self.replaced(first_state())
        with pytest.raises(ShapeError, match="layers of this Sequential were replaced"):
            load_in_place(model, first_state())


class Pruned(nn.Module):
    """Weights times a mask, which is a buffer."""

    def __init__(self, *, persistent):
        super().__init__()
        mask = (torch.arange(8.0) % 3 > 0)[:, None].float()
        self.register_buffer("mask", mask, persistent=persistent)

    def forward(self, weight):
        return weight * self.mask[: len(weight)]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_weight_that_is_computed_with_a_buffer(persistent):
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    register_parametrization(model[0], "weight", Pruned(persistent=persistent))
    indices = {
        name: {0: torch.arange(6)}
        for name in model.state_dict()
        if name.startswith("0.")
    }
    indices["2.weight"] = {1: torch.arange(6)}
    state = extract(model.state_dict(), indices)

    for _ in range(2):
        small = load_in_place(copy.deepcopy(model), state)
        assert small[0].weight.shape == (6, 5)
        x = torch.randn(4, 5)
        assert torch.equal(small(x), load_submodel(model, state)(x))
    load_in_place(small, model.state_dict())
    assert torch.equal(small(x), model(x))


def test_a_compiled_model_follows_when_only_the_scale_is_another():
    model, state = mlp(), mlp().state_dict()
    plan, x = plan_submodels(mlp(), torch.zeros(2, 4)), torch.ones(2, 4)
    part = extract(state, plan.indices((torch.arange(3), torch.arange(5))))
    compiled = torch.compile(model, backend="eager")
    for scale in (False, True, False, True):
        load_in_place(model, part, scale=scale)
        expected = load_submodel(mlp(), part, scale=scale)(x)
        assert torch.allclose(compiled(x), expected)
