"""What a new object lacks that has loaded what was saved of another."""

import csv
import itertools
import logging
import math
import random
import re
import weakref
from array import array
from collections import Counter, defaultdict, deque
from copy import deepcopy
from enum import IntEnum
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch

from flwr_asyncdrop.completeness.unsaved import Unsaved
from flwr_asyncdrop.state_dict import Stateless


class Holder(Stateless):
    """A user's object that holds one thing."""

    def __init__(self, held):
        self.held = held


class Pair(NamedTuple):
    one: int
    two: int


class Mode(IntEnum):
    WARM = 1


class Slots:
    __slots__ = ("__hidden", "held")

    def __init__(self):
        self.held = 0
        self.__hidden = 0

    def hide(self):
        self.__hidden += 1


class Shared(Stateless):
    number = 0
    items: ClassVar[list] = []


def generator():
    yield from (1, 2, 3)


def lost(make, change, saved=None):
    """Return what is lost of what `make` makes, when `change` has been at it."""

    def build():
        return {"part": Holder(make())}

    parts = build()
    unsaved = Unsaved(parts, build)
    assert unsaved.find(lambda: {"part": saved or {}}) == ""
    change(parts["part"].held)
    return unsaved.find(lambda: {"part": saved or {}})


def add(array):
    array += 1


class Tests:
    """What weak references are to."""


TESTS = Tests()


CHANGES = {
    "list": (list, lambda held: held.append(1)),
    "item": (lambda: [0], lambda held: held.__setitem__(0, 1)),
    "deque": (deque, lambda held: held.append(1)),
    "dict": (dict, lambda held: held.update(a=1)),
    "order": (lambda: {1: 1, 2: 2}, lambda held: held.update({1: held.pop(1)})),
    "counter": (Counter, lambda held: held.update([3])),
    "set": (set, lambda held: held.add(1)),
    "tensor": (lambda: torch.zeros(2), add),
    "bfloat16": (lambda: torch.zeros(2, dtype=torch.bfloat16), add),
    "array": (lambda: np.zeros(2), add),
    "objects": (lambda: np.array([None, "a"]), lambda held: held.__setitem__(0, 1)),
    "module": (lambda: torch.nn.BatchNorm1d(1), lambda held: add(held.bias.data)),
    "slots": (Slots, lambda held: setattr(held, "held", 1)),
    "private slots": (Slots, Slots.hide),
    "array of Python": (lambda: array("d", [0]), lambda held: held.append(1)),
    "object as a key": (lambda: {Slots(): 0}, lambda held: next(iter(held)).hide()),
    "value of such": (
        lambda: {Slots(): []},
        lambda h: next(iter(h.values())).append(1),
    ),
    "set of objects": (lambda: {Slots()}, lambda held: next(iter(held)).hide()),
    "parameter as a key": (
        lambda: {torch.nn.Parameter(torch.zeros(2)): 0},
        lambda held: add(next(iter(held)).data),
    ),
    "weak keys": (
        lambda: weakref.WeakKeyDictionary({TESTS: [0]}),
        lambda held: held[TESTS].append(1),
    ),
    "namespace": (SimpleNamespace, lambda held: setattr(held, "a", 1)),
    "python's random": (partial(random.Random, 0), lambda held: held.random()),
    "numpy's": (lambda: np.random.default_rng(0), lambda held: held.random()),
    "torch's": (torch.Generator, lambda held: torch.rand(1, generator=held)),
    "iterator": (lambda: iter([1, 2]), next),
    "count": (itertools.count, next),
    "generator": (generator, next),
    "partial": (lambda: partial(max, [0]), lambda held: held.args[0].append(1)),
    "builtin": (lambda: [min], lambda held: held.__setitem__(0, max)),
    "method": (lambda: Holder([]).__init__, lambda held: held([1])),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_change_is_found(name):
    make, change = CHANGES[name]
    assert re.match(
        r"no checkpoint has [A-Z][a-z]+\.(held|_Slots__hidden), ", lost(make, change)
    )
    assert lost(make, look) == ""


def look(held):
    """Look, and change nothing."""
    return repr(held)


class Refusing:
    """An iterator as those of `itertools` will be: without a copy, or a reduction."""

    __slots__ = ()

    def __next__(self):
        return 0

    def __iter__(self):
        return self

    def __reduce__(self):
        raise TypeError("this cannot be pickled")


@pytest.mark.parametrize("make", [lambda: csv.reader(["a", "b"]), Refusing])
def test_nobody_knows_how_far_an_iterator_is_that_does_not_say(make):
    parts = {"part": Holder(make())}
    unsaved = Unsaved(parts, lambda: {"part": Holder(make())})
    assert unsaved.find(dict).startswith("no checkpoint has ")


@pytest.mark.parametrize("held", [math.nan, 1, None, Path("there"), torch.float32])
def test_what_cannot_change_has_not(held):
    assert lost(lambda: held, look) == ""
    assert lost(lambda: [held, np.float32(0.5)], look) == ""


def test_what_a_logger_has_is_the_processs():
    logger = logging.getLogger("tests.unsaved")

    def change(held):
        held.isEnabledFor(logging.DEBUG)
        held.setLevel(logging.ERROR)

    assert lost(lambda: logger, change) == ""


def test_an_object_that_holds_itself():
    def around():
        held = Holder(0)
        held.self = [held]
        return held

    assert lost(around, look) == ""
    assert lost(around, lambda held: setattr(held, "held", 1)) != ""


class Saving(Holder):
    def state_dict(self):
        return {"held": self.held}

    def load_state_dict(self, state):
        self.held = state["held"]


ZEROS = torch.zeros(2)


def test_a_tensor_of_the_state_is_saved_though_all_began_with_the_same():
    def build():
        return {"part": Saving(ZEROS)}

    parts = build()
    unsaved = Unsaved(parts, build)
    parts["part"].held = parts["part"].held + 1
    assert unsaved.find(lambda: {"part": parts["part"].state_dict()}) == ""


@pytest.mark.parametrize(
    "change",
    [lambda: Shared.items.append(1), lambda: setattr(Shared, "number", 1)],
)
def test_what_a_class_holds_is_no_objects_own(change, monkeypatch):
    monkeypatch.setattr(Shared, "items", [])
    monkeypatch.setattr(Shared, "number", 0)
    unsaved = Unsaved({"part": Shared()}, lambda: {"part": Shared()})
    assert unsaved.find(dict) == ""
    change()
    assert re.match(
        "no checkpoint has Shared.(items|number), which is not the object's own: all "
        "runs share it",
        unsaved.find(dict),
    )


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("kind", ["python's random", "numpy's", "torch's", "iterator"])
def test_each_of_several_that_a_class_holds_is_looked_into(kind, place, monkeypatch):
    make, change = CHANGES[kind]
    monkeypatch.setattr(Shared, "items", [make() for _ in range(3)])
    unsaved = Unsaved({"part": Shared()}, lambda: {"part": Shared()})
    assert unsaved.find(dict) == ""
    change(Shared.items[place])
    assert unsaved.find(dict).startswith("no checkpoint has Shared.items, which is not")


class Warm:
    """A rule with nothing in it."""


class Cool:
    """Another one."""


@pytest.mark.parametrize(
    ("before", "later"),
    [
        (None, Warm()),
        (Warm(), Cool()),
        (Warm(), None),
        (None, torch.nn.Linear(1, 1)),
        ([None], [Warm()]),
        ({"a": Warm()}, {"a": Cool()}),
        (Warm, Cool),
    ],
)
def test_an_object_of_another_kind_in_a_class_is_told(before, later, monkeypatch):
    monkeypatch.setattr(Shared, "items", before)
    unsaved = Unsaved({"part": Shared()}, lambda: {"part": Shared()})
    assert unsaved.find(dict) == ""
    monkeypatch.setattr(Shared, "items", later)
    assert unsaved.find(dict).startswith("no checkpoint has Shared.items, which is not")


RULES = {"warm": Warm(), "cool": Cool(), "class": Warm, "other class": Cool}


class Ruled(Holder):
    """Has one of the rules, and saves which."""

    def state_dict(self):
        (name,) = (name for name, rule in RULES.items() if rule is self.held)
        return {"name": name}

    def load_state_dict(self, state):
        self.held = RULES[state["name"]]


@pytest.mark.parametrize(
    ("first", "then"), [("warm", "cool"), ("class", "other class")]
)
def test_a_rule_that_all_runs_share_is_loaded_by_its_name(first, then):
    part = Ruled(RULES[first])
    unsaved = Unsaved({"part": part}, lambda: {"part": Ruled(RULES[first])})
    part.held = RULES[then]
    assert unsaved.find(lambda: {"part": part.state_dict()}) == ""


class Adaptive(Holder):
    """Steps as Adam does, with an optimizer of PyTorch."""

    def __init__(self):
        super().__init__(torch.nn.Parameter(torch.zeros(2)))
        self.optimizer = torch.optim.Adam([self.held])
        self.rates = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def step(self):
        self.held.grad = torch.ones(2)
        self.optimizer.step()
        self.rates.step()

    def state_dict(self):
        return {
            "held": self.held.detach(),
            "steps": self.optimizer.state_dict(),
            "rates": self.rates.state_dict(),
        }

    def load_state_dict(self, state):
        self.held.data.copy_(state["held"])
        self.optimizer.load_state_dict(state["steps"])
        self.rates.load_state_dict(state["rates"])


def test_an_optimizer_that_is_saved_comes_back():
    part = Adaptive()
    unsaved = Unsaved({"part": part}, lambda: {"part": Adaptive()})
    part.step()
    saved = part.state_dict()
    assert unsaved.find(lambda: {"part": deepcopy(saved)}) == ""
    saved["steps"] = Adaptive().optimizer.state_dict()
    said = unsaved.find(lambda: {"part": deepcopy(saved)})
    assert said.startswith("no checkpoint has Adaptive.optimizer")


def test_a_class_may_be_made_with_its_object():
    def build():
        class Made(Holder):
            pass

        return {"part": Made(0)}

    assert Unsaved(build(), build).find(dict) == ""


@pytest.mark.parametrize(
    ("held", "loaded"),
    [
        (deque([1], maxlen=1), deque([1])),
        (deque([1]), [1]),
        (defaultdict(int, a=1), {"a": 1}),
        (Counter("a"), {"a": 1}),
        (defaultdict(int, a=1), defaultdict(list, a=1)),
        (Pair(1, 2), [1, 2]),
        (Mode.WARM, 1),
        ([Mode.WARM], [1]),
        ([1], [Mode.WARM]),
        (torch.zeros(2), np.zeros(2, np.float32)),
    ],
)
def test_a_container_of_another_kind_goes_on_otherwise(held, loaded):
    unsaved = Unsaved({"part": Saving(held)}, lambda: {"part": Saving(None)})
    assert unsaved.find(lambda: {"part": {"held": loaded}}) != ""
    assert unsaved.find(lambda: {"part": {"held": held}}) == ""


def test_what_no_state_can_be_had_of_ends_no_run():
    def build():
        return {"part": Holder(random.SystemRandom())}

    assert "System entropy source" in Unsaved(build(), build).find(dict)


class Table(Holder):
    @cached_property
    def table(self):
        return [self.held] * 3


def test_what_is_derived_is_the_same_in_a_new_object():
    assert lost(lambda: Table(2), lambda held: held.table) == ""
    said = lost(lambda: Table(2), lambda held: held.table.append(1))
    assert said.startswith("no checkpoint has Table.table")


def test_an_attribute_that_is_taken_away_is_lost():
    said = lost(Slots, lambda held: delattr(held, "held"))
    assert said.startswith("no checkpoint has Slots.held")
    for mark in (0, object()):
        said = lost(lambda mark=mark: Holder(mark), lambda held: delattr(held, "held"))
        assert said.startswith("no checkpoint has Holder.held")


class Random(Holder):
    """Begins with something drawn, and does not save it."""

    def __init__(self):
        super().__init__((torch.rand(1), np.random.rand(), random.random()))  # noqa: NPY002, S311


def test_building_again_draws_nothing_from_the_global_generators():
    first = {"part": Random()}
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    unsaved = Unsaved(first, lambda: {"part": Random()})
    assert "Random.held" in unsaved.find(dict)
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert random.getstate() == of_python


def quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("make", [lambda: torch.zeros(2).to_sparse(), quantized])
def test_what_cannot_be_compared_is_not_known_to_be_saved(make):
    def build():
        return {"part": Holder(make())}

    unsaved = Unsaved(build(), build)
    assert unsaved.find(dict).startswith("one that resumes cannot build and compare")


def test_what_is_built_once_alone_cannot_be_resumed():
    def build():
        raise ValueError("once")

    said = Unsaved({"part": Holder(0)}, build).find(dict)
    assert said.endswith("(ValueError: once)")


@pytest.mark.parametrize(
    ("held", "loaded", "is_lost"),
    [
        (np.float32(0.1), float(np.float32(0.1)), True),
        (np.float32(0.1), np.float32(0.1), False),
        (np.float16(0.5), np.float32(0.5), True),
        (np.uint8(200), 200, True),
        (np.float64(0.1), 0.1, False),
        (np.int64(3), 3, False),
        (np.bool_(True), True, False),
        (np.str_("a"), "a", False),
    ],
)
def test_a_number_that_counts_in_another_precision_is_another(held, loaded, is_lost):
    unsaved = Unsaved({"part": Saving(held)}, lambda: {"part": Saving(None)})
    assert bool(unsaved.find(lambda: {"part": {"held": loaded}})) == is_lost
    unsaved = Unsaved({"part": Saving([held])}, lambda: {"part": Saving(None)})
    assert bool(unsaved.find(lambda: {"part": {"held": [loaded]}})) == is_lost


def test_a_tensor_that_comes_back_on_another_device_is_another():
    held = torch.zeros(2, device="meta")
    unsaved = Unsaved({"part": Saving(held)}, lambda: {"part": Saving(None)})
    said = unsaved.find(lambda: {"part": {"held": torch.zeros(2)}})
    assert said.startswith("no checkpoint has Saving.held, which load_state_dict")


class Scaled(Saving):
    """Saves twice what it holds."""

    def state_dict(self):
        return {"held": self.held * 2}

    def load_state_dict(self, state):
        self.held = state["held"].div_(2)


def test_a_state_that_is_changed_as_it_is_loaded_is_not_what_was_saved():
    part = Scaled(torch.ones(2))
    unsaved = Unsaved({"part": part}, lambda: {"part": Scaled(None)})
    assert unsaved.find(lambda: {"part": part.state_dict()}) == (
        "Scaled.load_state_dict changes tensors of the state that it gets, in place"
    )


def test_a_parameter_may_come_back_as_a_tensor():
    parts = {"part": Saving(torch.nn.Parameter(torch.ones(2)))}
    unsaved = Unsaved(parts, lambda: {"part": Saving(None)})
    assert unsaved.find(lambda: {"part": {"held": torch.ones(2)}}) == ""
    assert unsaved.find(lambda: {"part": {"held": [1.0, 1.0]}}) != ""


def test_without_anything_of_a_users_own_nothing_is_built():
    def build():
        raise AssertionError

    around = [1]
    around.append(around)
    parts = {"part": Counter([1]), "around": around, "none": None}
    assert Unsaved(parts, build).find(build) == ""


def test_a_key_is_not_taken_for_its_value():
    assert lost(lambda: {lost: look, Holder: Slots}, look) == ""
