"""Paths that the example inputs do not take: traced, or what they use is kept."""

import math
import random
from random import random as draw
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels, silenced
from tests.submodel.networks import seeded, vectors
from tests.submodel.silencing import run

OTHER_PATH = "other inputs may take another path"


class Fork(nn.Module):
    """Two ways from `a` to the head; the second knows the full width of `a`."""

    def __init__(self, turn):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.turn = turn

    def forward(self, x):
        h = torch.relu(self.a(x))
        if self.turn(self, x):
            return self.head(torch.relu(self.b(h)))
        return self.head(torch.relu(self.c(h)) * (8 / h.shape[1]))


def _written(number):
    """Return it by way of a view of what it is written on."""
    whole = torch.zeros(2)
    part = whole[0]
    whole[0] = number
    return part.item()


def forked(turn):
    return seeded(lambda: Fork(turn))


READS = {
    "tolist": lambda _, x: x.sum().tolist() > 0,
    "numpy": lambda _, x: x.sum().numpy() > 0,
    "item": lambda _, x: x.sum().item() > 0,
    "float": lambda _, x: float(x.sum()) > 0,
    "nonzero": lambda _, x: (x > 0).nonzero().numel() > 3,
    "masked": lambda _, x: x[x > 0].shape[0] > 3,
    "masked_select": lambda _, x: len(x.masked_select(x > 0)) > 3,
    "unique": lambda _, x: len(x.unique()) > 3,
    "a weight": lambda self, _: self.c.bias[0].item() > 0,
    "a list of numbers": lambda *_: torch.randperm(9).tolist()[0] < 8,
    "a part of a number of torch's": lambda *_: int(torch.rand(()) * 9) != 7,
    "noise": lambda *_: torch.randn(2).tolist()[0] < 1,
    "an array of numbers": lambda *_: np.random.rand(2)[0] < 0.99,  # noqa: NPY002
    "a generator of its own": lambda *_: np.random.default_rng().random() < 2,
    "a part of a number": lambda *_: int(random.random() * 9) < 8,  # noqa: S311
    "a number as a text": lambda *_: str(random.randint(0, 9)) != "9",  # noqa: S311
    "a number as an index": lambda *_: [0, 1][random.randint(0, 1)] < 1,  # noqa: S311
    "a function of a number": lambda *_: math.exp(random.random()) < 2,  # noqa: S311
    "a number by its name": lambda *_: draw() < 0.99,  # noqa: S311
    "a choice": lambda *_: random.choice([0, 1]) < 1,  # noqa: S311
    "a number that is written": lambda *_: _written(random.random()) < 0.99,  # noqa: S311
}


@pytest.mark.parametrize("turn", READS.values(), ids=READS)
def test_what_code_handles_that_reads_values_stays_whole(turn):
    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(forked(turn), vectors().abs())


TURNS = {
    "a truth value": lambda _, x: x.sum() > 0,
    "equal": lambda _, x: torch.equal(x, x.abs()),
    "a coin": lambda *_: torch.randint(2, ()) == 0,
    "an uneven coin": lambda *_: torch.bernoulli(torch.tensor(0.9)) == 1,
    "a number of Python's": lambda *_: random.random() < 0.99,  # noqa: S311
    "a range of numbers": lambda *_: not 0.6 < random.random() < 0.61,  # noqa: S311
    "arithmetic": lambda *_: 2 - abs(-random.random()) / 9 > 1.9,  # noqa: S311
    "a number of NumPy's": lambda *_: np.random.rand() < 0.99,  # noqa: NPY002
    "a whole number": lambda *_: torch.randint(100, ()).item() < 99,
    "a tensor of a number": lambda *_: torch.tensor(random.random()) < 0.99,  # noqa: S311
    "no number": lambda *_: random.randint(0, 99),  # noqa: S311
    "one of some numbers": lambda *_: random.randint(0, 99) not in (7, 8),  # noqa: S311
    "allclose": lambda _, x: torch.allclose(x, x.abs()),
    "any": lambda _, x: (x > 0).any(),
    "the batch size": lambda _, x: x.shape[0] < 2,
    "an even batch": lambda _, x: len(x) % 2 == 1,
    "the mode": lambda self, _: not self.training,
    "a random number": lambda _, __: torch.rand(()) < 0.9,
    "a range of random numbers": lambda *_: not 0.1 < torch.rand(1) < 0.2,
    "a range of its values": lambda *_: not 0.8 < torch.rand(()).item() < 0.81,
    "an exponential range": lambda *_: not 0.1 < torch.empty(1).exponential_() < 0.2,
    "numbers of the last axis": lambda _, x: x.sum(-1).min() < 0,
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_every_path_is_tried(turn):
    plan = plan_submodels(forked(turn), vectors().abs()[:1])

    assert "a" not in {group.name for group in plan.groups}
    assert "differs from the full one" in plan.left_out["a"]


class Warming(Fork):
    """Takes another path after so many passes in training mode."""

    def __init__(self, turn):
        super().__init__(turn)
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x):
        out = super().forward(x)
        self.passes += self.training
        return out


def test_a_path_that_is_taken_after_some_passes():
    plan = plan_submodels(
        seeded(lambda: Warming(lambda self, _: self.passes < 9)), vectors()
    )

    assert "a" not in {group.name for group in plan.groups}
    assert "differs from the full one" in plan.left_out["a"]


def test_what_code_handles_that_reads_how_many_passes_there_were():
    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(
            seeded(lambda: Warming(lambda self, _: self.passes.item() < 9)), vectors()
        )


def test_batch_normalisation_that_averages_over_its_batches_stays_droppable():
    layers = nn.Linear(5, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)

    plan = plan_submodels(nn.Sequential(*layers), vectors())

    assert [group.name for group in plan.groups] == ["0"]


class Sound(Fork):
    def forward(self, x):
        h = torch.relu(self.a(x))
        side = self.b if self.turn(self, x) else self.c
        return self.head(torch.relu(side(h)))


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_units_that_are_right_on_every_path(turn):
    plan = plan_submodels(seeded(lambda: Sound(turn)), vectors().abs()[:1])

    assert {"a", "b"} <= {group.name for group in plan.groups}


def test_a_path_that_raises_is_no_path():
    def turn(_, x):
        if x.isnan().any():
            raise ValueError("not a number")
        return True

    plan = plan_submodels(forked(turn), vectors())

    assert [group.name for group in plan.groups] == ["a", "b"]


def test_a_path_that_these_inputs_do_not_fit():
    class Fits(Fork):
        def forward(self, x):
            h = torch.relu(self.a(x))
            if (x > 0).all():
                h = h.view(*x.shape, 8)[:, :, 0] @ self.b.weight[:5]
            return self.head(torch.relu(self.b(h)))

    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(seeded(lambda: Fits(None)), -vectors().abs())


class SkipsLayers(nn.Module):
    """Layers that are skipped by chance, each for itself, as in LayerDrop."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        h = self.first(x)
        for layer in self.layers:
            if self.training and self.draw() < 0.1:
                continue
            h = h + torch.relu(layer(h))
        return self.last(h)


@pytest.mark.parametrize("draw", [lambda: torch.rand([]), lambda: torch.rand(1).item()])
def test_many_layers_that_are_skipped_by_chance(draw):
    """All paths are too many: those where all draws are small, or large, will do."""
    plan = plan_submodels(seeded(lambda: SkipsLayers(draw)), vectors())
    assert [group.size for group in plan.groups] == [8]


def test_too_many_paths():
    def turn(_, x):
        return sum(bool(x.sum() > bound) for bound in range(9)) > 3

    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(forked(turn), vectors())


class Experts(nn.Module):
    """Chooses a module for each row by its number."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(3)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        chosen = x.argmax(-1).remainder(3).tolist()
        rows = [self.experts[n](row) for n, row in zip(chosen, x, strict=True)]
        return self.head(torch.stack(rows))


def test_experts_that_the_inputs_did_not_choose():
    model = seeded(Experts)
    plan = plan_submodels(model, torch.eye(5, dtype=torch.float64)[:1])

    for row in torch.eye(5, dtype=torch.float64):
        keep = tuple(units[: len(units) // 2] for units in plan.full_keep())
        indices = plan.indices(keep)
        small = load_submodel(model, extract(model.state_dict(), indices), scale=False)
        expected = run(model, silenced(model.state_dict(), indices), row[None])
        assert torch.allclose(small(row[None]), expected, atol=1e-6)


class Told(nn.Module):
    """Tells a block by a plain value what it read."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x, float(x.sum()) > 0)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x, flag):
        h = torch.relu(self.a(x))
        return self.b(h) if flag else self.c(h * (8 / h.shape[1]))


def test_a_block_that_is_told_what_was_read():
    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(seeded(Told), vectors().abs())


class Crops(nn.Module):
    def forward(self, x):
        return x[:, torch.randint(2, ()).item() :][:, :5]


class Chooses(nn.Module):
    def forward(self, x):
        return x, random.randrange(9)  # noqa: S311


class Behind(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first, self.fork = first, Fork(None)

    def forward(self, x):
        fork, made = self.fork, self.first(x)
        x, number = made if isinstance(made, tuple) else (made, 0)
        h = torch.relu(fork.a(x))
        if number < 8:
            return fork.head(torch.relu(fork.b(h)))
        return fork.head(torch.relu(fork.c(h)) * (8 / h.shape[1]))


def test_a_number_that_a_submodule_draws_for_itself():
    plan = plan_submodels(seeded(lambda: Behind(Crops())), vectors(6))

    assert [group.name for group in plan.groups] == ["fork.a", "fork.b"]


def test_a_number_that_a_submodule_draws_for_its_caller():
    plan = plan_submodels(seeded(lambda: Behind(Chooses())), vectors())

    assert "fork.a" not in {group.name for group in plan.groups}
    assert "differs from the full one" in plan.left_out["fork.a"]


class ChoosesByName(nn.Module):
    def forward(self, x):
        return x, draw() * 9  # noqa: S311


def test_a_number_that_nobody_follows_and_a_submodule_draws_for_its_caller():
    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(seeded(lambda: Behind(ChoosesByName())), vectors())


class ToldOfChance(Told):
    def __init__(self, tell):
        super().__init__()
        self.tell = tell

    def forward(self, x):
        return self.inner(x, self.tell())


TOLD = {
    "a number": lambda: random.randrange(9) % 8,  # noqa: S311
    "a truth value": lambda: random.random() < 0.9,  # noqa: S311
    "a truth value of a tensor's": lambda: torch.randint(9, ()).item() < 8,
    "a truth value of a tensor": lambda: bool(torch.randint(9, ()) < 8),
}


@pytest.mark.parametrize("tell", TOLD.values(), ids=TOLD)
def test_a_block_that_is_told_what_was_drawn(tell):
    with pytest.raises(UnsupportedModelError, match="differs from the full one"):
        plan_submodels(seeded(lambda: ToldOfChance(tell)), vectors())


def test_a_block_that_is_told_a_number_that_nobody_follows():
    def build():
        return ToldOfChance(lambda: draw() * 9)  # noqa: S311

    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(seeded(build), vectors())


class ToldByAnObject(Told):
    def forward(self, x):
        told = SimpleNamespace(flag=x.sum().item() > 0)
        return self.inner(x, told)


class TakesAnObject(Inner):
    def forward(self, x, told):
        return super().forward(x, told.flag)


def test_a_block_that_is_told_by_an_object():
    def build():
        model = ToldByAnObject()
        model.inner = TakesAnObject()
        return model

    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(seeded(build), vectors().abs())


class Remembers(Fork):
    """Keeps an activation for the code behind the branch."""

    def forward(self, x):
        self.kept = Keeper.apply_to(self, x)
        out = self.b(self.kept) if x.sum().item() > 0 else self.c(self.kept)
        del self.kept
        return self.head(out)


class Keeper:
    @staticmethod
    def apply_to(module, x):
        return torch.relu(module.a(x))


def test_an_activation_in_an_attribute():
    with pytest.raises(UnsupportedModelError, match=OTHER_PATH):
        plan_submodels(seeded(lambda: Remembers(None)), vectors())


class Length(nn.Module):
    """Means over positions, weighted in short sequences by what the width is."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens):
        h = self.embedding(tokens)
        if tokens.shape[1] < 4:
            h = h * (8 / h.shape[-1])
        return self.head(h.mean(1))


def test_other_lengths():
    with pytest.raises(UnsupportedModelError, match="differs from the full one"):
        plan_submodels(seeded(Length), torch.ones(2, 6, dtype=torch.int64))


class LengthInTheLast(Length):
    """As many layers of one width as there are numbers of units to keep."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens):
        h = self.embedding(tokens)
        for layer in self.layers:
            h = torch.relu(layer(h))
        if tokens.shape[1] < 4:
            h = h * (8 / h.shape[-1])
        return self.head(h.mean(1))


def test_each_of_many_groups_is_tried_on_other_lengths():
    plan = plan_submodels(seeded(LengthInTheLast), torch.ones(2, 6, dtype=torch.int64))

    assert [group.name for group in plan.groups] == [
        "embedding",
        "layers.0",
        "layers.1",
    ]
    assert "differs from the full one" in plan.left_out["layers.2"]


class Tokens(Length):
    def forward(self, tokens):
        h = self.embedding(tokens)
        rare = (tokens == 13).any(1, keepdim=True).unsqueeze(-1)
        return self.head(torch.where(rare, h * (8 / h.shape[-1]), h).mean(1))


def test_other_token_values():
    with pytest.raises(UnsupportedModelError, match="differs from the full one"):
        plan_submodels(seeded(Tokens), torch.ones(2, 40, dtype=torch.int64))


def test_several_examples():
    class Wide(Fork):
        def forward(self, x, wide=False):
            h = torch.relu(self.a(x))
            return self.head(self.c(h) * (8 / h.shape[1]) if wide else self.b(h))

    model = seeded(lambda: Wide(None))
    assert "a" in {group.name for group in plan_submodels(model, vectors()).groups}
    wide = {"x": vectors(), "wide": True}

    plan = plan_submodels(model, [vectors(), wide])
    assert "a" not in {group.name for group in plan.groups}

    with pytest.raises(UnsupportedModelError, match="unexpected keyword"):
        plan_submodels(model, [vectors(), {"y": vectors()}])


def test_keyword_arguments_of_every_pass():
    class Masked(Fork):
        def forward(self, x, *, mask):
            return self.head(F.relu(self.a(x)) * mask)

    model = seeded(lambda: Masked(None))
    plan = plan_submodels(model, vectors(), example_kwargs={"mask": torch.ones(2, 1)})

    assert [group.name for group in plan.groups] == ["a"]


class Node:
    """Of a tree: nodes know their parents."""

    def __init__(self, features, children=()):
        self.features, self.children, self.parent = features, list(children), None
        for child in children:
            child.parent = self


def test_inputs_that_name_each_other():
    class Tree(Fork):
        def at(self, node):
            assert all(child.parent is node for child in node.children)
            below = sum(self.at(child) for child in node.children)
            return F.relu(self.a(node.features) + below)

        def forward(self, root):
            return self.head(self.at(root))

    root = Node(vectors(), [Node(vectors()), Node(vectors())])
    plan = plan_submodels(seeded(lambda: Tree(None)), (root,))

    assert [group.name for group in plan.groups] == ["a"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_inputs_that_cannot_be_copied():
    ragged = torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(1, 6)])
    with pytest.raises(UnsupportedModelError, match="does not run on the example"):
        plan_submodels(seeded(lambda: Fork(None)), ragged)
