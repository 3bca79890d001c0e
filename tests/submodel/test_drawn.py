"""Numbers that models draw in Python: noise and coins leave units free to go."""

import copy
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels
from flwr_asyncdrop.submodel.probing.alone import drawing_alone
from flwr_asyncdrop.submodel.probing.drawn import Follower, Source, Watch
from tests.submodel.networks import seeded, vectors

# ruff: noqa: S311, NPY002


class Flat(nn.Module):
    """Two layers, and something between them in its own code."""

    def __init__(self, between):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.b(self.between(self, torch.relu(self.a(x))))


def groups(between):
    plan = plan_submodels(seeded(lambda: Flat(between)), vectors())
    return [group.name for group in plan.groups]


def mixed(h, share):
    return share * h + (1 - share) * h.flip(0)


def _kept(model):
    model.factor = random.random()
    return model.factor


HARMLESS = {
    "noise": lambda _, h: h + torch.randn_like(h) if random.random() < 0.1 else h,
    "a factor": lambda _, h: h * np.random.uniform(0.9, 1.1),
    "an option": lambda _, h: h.add(h, alpha=random.gauss(0, 1)),
    "mixed rows": lambda _, h: mixed(h, np.random.beta(1, 1)),
    "a coin of torch's": lambda _, h: h * 2 if torch.randint(2, ()).item() == 1 else h,
    "a coin that skips": lambda _, h: h if np.random.randint(4) else torch.relu(h - 1),
    "a tensor": lambda _, h: h * torch.tensor(random.random()),
    "the larger": lambda _, h: h * max(random.random(), 0.5),
    "kept": lambda model, h: h * _kept(model),
    "the same each time": lambda _, h: h * np.random.default_rng(0).random(),
    "written": lambda _, h: h.clone().mul_(random.random()),
}


@pytest.mark.parametrize("between", HARMLESS.values(), ids=HARMLESS)
def test_what_is_drawn_and_computed_with(between):
    assert groups(between) == ["a"]


def _part(h, size):
    """Return that many of the rows, as often as it takes; or, once, all of them."""
    return h if len(torch.arange(size)) == 2 else h * (8 / h.shape[1])


HARMFUL = {
    "as many units": lambda _, h: h.narrow(1, 0, random.randint(8, 8)),
    "a length": lambda _, h: _part(h, random.randint(1, 2)),
    "a length that is no whole number": lambda _, h: _part(h, 1 + random.random()),
    "a bound": lambda _, h: h.clamp(min=random.random() - 0.9).sum(1, keepdim=True) * h,
    "a power": lambda _, h: h ** random.randint(0, 1),
}


@pytest.mark.parametrize("between", HARMFUL.values(), ids=HARMFUL)
def test_what_is_drawn_and_does_more(between):
    with pytest.raises(UnsupportedModelError, match="or drawn at random"):
        groups(between)


def test_code_that_takes_plain_numbers_only():
    def between(_, h):
        kind = type(random.random())
        if kind is not float:
            raise TypeError(f"{kind} is no float")
        return h

    with pytest.raises(UnsupportedModelError, match="or drawn at random"):
        groups(between)


def test_code_that_asks_for_the_kind_of_a_number():
    def between(_, h):
        return h * (8 / h.shape[1]) if isinstance(random.random(), float) else h

    with pytest.raises(UnsupportedModelError, match="differs from the full one"):
        groups(between)


def test_functions_that_draw_are_put_back():
    own = random.random, random.randint, np.random.rand

    assert groups(HARMLESS["a factor"]) == ["a"]
    assert own == (random.random, random.randint, np.random.rand)


def _elsewhere(function):
    """Return what a function gives in another thread."""
    drawn = []
    thread = threading.Thread(target=lambda: drawn.append(function()))
    thread.start()
    thread.join()
    return drawn[0]


DRAWS = {
    "a number": lambda: random.random(),
    "a choice": lambda: random.choice([0.5, 1.0]),
    "of NumPy's": lambda: np.random.rand(),
    "a permutation": lambda: float(np.random.permutation(3)[0]),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_other_threads_draw_plain_numbers_from_generators_of_their_own(draw):
    """A server's threads may, at any moment: that changes no plan."""
    kinds = set()

    def between(_, h):
        kinds.add(type(_elsewhere(draw)))
        return h * random.random()

    assert groups(between) == ["a"]
    assert kinds == {float}


def test_a_model_that_draws_in_other_threads_is_not_the_same_each_time():
    with pytest.raises(UnsupportedModelError, match="something else each time"):
        groups(lambda _, h: h * _elsewhere(random.random))


@pytest.mark.parametrize("module", [random, np.random])
def test_other_threads_may_seed_theirs(module):
    def seeded_draw():
        module.seed(3)
        return module.uniform(0, 1)

    expected = seeded_draw()
    with drawing_alone():
        module.seed(0)
        before = module.uniform(0, 1)
        module.seed(0)
        assert _elsewhere(seeded_draw) == expected
        assert module.uniform(0, 1) == before


def test_the_global_generators_are_as_they_were_and_other_threads_own():
    before = random.getstate(), np.random.get_state()[1].tolist()
    with drawing_alone():
        _elsewhere(random.random)
        _elsewhere(np.random.rand)
        assert random.getstate() == before[0]
        random.seed(0)
        first = random.random()
        with drawing_alone():
            random.seed(0)
            assert random.random() == first
    random.setstate(before[0])
    assert np.random.get_state()[1].tolist() == before[1]


OF_THIS_FILE = random.Random(1)
KEPT = {
    "of Python's": (random.Random(1), lambda one: one.random()),
    "of NumPy's": (np.random.default_rng(1), lambda one: one.random()),
    "of NumPy's as it was": (np.random.RandomState(1), lambda one: one.rand()),
    "in a container": ({"one": [random.Random(1)]}, lambda one: one["one"][0].random()),
    "global": (None, lambda _: OF_THIS_FILE.random()),
}


@pytest.mark.parametrize(("kept", "draw"), KEPT.values(), ids=KEPT)
def test_a_generator_of_the_model(kept, draw):
    """Its draws are the same in each pass, and seen: they may lead to another path."""
    model = seeded(lambda: Flat(lambda model, h: h * draw(model.kept)))
    model.kept = kept
    before = draw(copy.deepcopy(kept)) if kept else OF_THIS_FILE.getstate()

    with pytest.raises(UnsupportedModelError, match="a, b: used where a Python value"):
        plan_submodels(model, vectors())
    assert before == (draw(copy.deepcopy(kept)) if kept else OF_THIS_FILE.getstate())


def test_a_generator_of_torch():
    model = seeded(
        lambda: Flat(lambda model, h: h + torch.randn(h.shape, generator=model.kept))
    )
    model.kept = torch.Generator().manual_seed(1)
    before = model.kept.get_state()

    plan = plan_submodels(model, vectors())

    assert [group.name for group in plan.groups] == ["a"]
    assert torch.equal(model.kept.get_state(), before)


def test_numbers_that_nothing_shows_where_they_come_from():
    with pytest.raises(UnsupportedModelError, match="something else each time"):
        groups(lambda _, h: h * random.SystemRandom().random())


def test_two_threads_that_plan_leave_the_generators_as_they_were():
    """The one that ended last put back what the other had put there."""
    before = random.random
    inside, ended = threading.Event(), threading.Event()

    def slow(_, h):
        if random.random is not before and not inside.is_set():
            inside.set()
            ended.wait(1.0)
        return h * random.random()

    def other():
        inside.wait(30.0)
        follower = Follower(Source(Watch(), bool), lambda _: None)
        with drawing_alone(), follower.following():
            ended.set()
            first.join(1.0)

    first = threading.Thread(target=groups, args=[slow])
    second = threading.Thread(target=other)
    first.start()
    second.start()
    second.join()
    first.join()
    assert random.random is before
