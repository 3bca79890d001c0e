"""What a new object lacks that has loaded what was saved of another."""

import itertools
import logging
import math
import random
from collections import Counter, deque
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from flwr_asyncdrop.server.unsaved import Unsaved
from flwr_asyncdrop.state_dict import Stateless


class Holder(Stateless):
    """A user's object that holds one thing."""

    def __init__(self, held):
        self.held = held


class Slots:
    __slots__ = ("held",)

    def __init__(self):
        self.held = 0


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
    "namespace": (SimpleNamespace, lambda held: setattr(held, "a", 1)),
    "python's random": (partial(random.Random, 0), lambda held: held.random()),
    "numpy's": (lambda: np.random.default_rng(0), lambda held: held.random()),
    "torch's": (torch.Generator, lambda held: torch.rand(1, generator=held)),
    "iterator": (lambda: iter([1, 2]), next),
    "count": (itertools.count, next),
    "generator": (generator, next),
    "partial": (lambda: partial(max, [0]), lambda held: held.args[0].append(1)),
    "method": (lambda: Holder([]).__init__, lambda held: held([1])),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_change_is_found(name):
    make, change = CHANGES[name]
    assert lost(make, change).startswith("no checkpoint has held of ")
    assert lost(make, look) == ""


def look(held):
    """Look, and change nothing."""
    return repr(held)


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
    assert "of Shared, which is not the object's own: all runs share it" in (
        unsaved.find(dict)
    )


class Table(Holder):
    @cached_property
    def table(self):
        return [self.held] * 3


def test_what_is_derived_is_the_same_in_a_new_object():
    assert lost(lambda: Table(2), lambda held: held.table) == ""
    said = lost(lambda: Table(2), lambda held: held.table.append(1))
    assert said.startswith("no checkpoint has table of Table")


def test_an_attribute_that_is_taken_away_is_lost():
    said = lost(Slots, lambda held: delattr(held, "held"))
    assert said.startswith("no checkpoint has held of Slots")
    said = lost(lambda: Holder(0), lambda held: delattr(held, "held"))
    assert said.startswith("no checkpoint has held of Holder")


class Random(Holder):
    """Begins with something drawn, and does not save it."""

    def __init__(self):
        super().__init__((torch.rand(1), np.random.rand(), random.random()))  # noqa: NPY002, S311


def test_building_again_draws_nothing_from_the_global_generators():
    first = {"part": Random()}
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    unsaved = Unsaved(first, lambda: {"part": Random()})
    assert "held of Random" in unsaved.find(dict)
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert random.getstate() == of_python


def test_what_cannot_be_compared_is_not_known_to_be_saved():
    def build():
        return {"part": Holder(torch.zeros(2).to_sparse())}

    unsaved = Unsaved(build(), build)
    assert unsaved.find(dict).startswith("one that resumes cannot build and compare")


def test_what_is_built_once_alone_cannot_be_resumed():
    def build():
        raise ValueError("once")

    said = Unsaved({"part": Holder(0)}, build).find(dict)
    assert said.endswith("(ValueError: once)")


def test_a_parameter_may_come_back_as_a_tensor():
    parts = {"part": Saving(torch.nn.Parameter(torch.ones(2)))}
    unsaved = Unsaved(parts, lambda: {"part": Saving(None)})
    assert unsaved.find(lambda: {"part": {"held": torch.ones(2)}}) == ""
    assert unsaved.find(lambda: {"part": {"held": [1.0, 1.0]}}) != ""


def test_without_anything_of_a_users_own_nothing_is_built():
    def build():
        raise AssertionError

    assert Unsaved({"part": Counter([1]), "none": None}, build).find(build) == ""
