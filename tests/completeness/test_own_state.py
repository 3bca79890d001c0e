"""What a user's own objects around a run keep: what is looked at, and when."""

import itertools
import logging
import random
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from torch.utils.data import DataLoader, TensorDataset

from flwr_asyncdrop import AsyncFedAvg
from flwr_asyncdrop.completeness.own_state import OwnState
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.server.callbacks import Callback, Evaluation
from flwr_asyncdrop.server.state import RunState
from tests.states import saved_and_read

MODEL = torch.nn.Linear(2, 1)
SHAPES = [(1,), (1, 2)]
EVALUATED = {name: t + 9 for name, t in MODEL.state_dict().items()}
STATE = RunState.start_from({}, seed=0)


class Keeping(Callback):
    """Keeps one thing."""

    def __init__(self, held):
        self.held = held


class Slots:
    __slots__ = ("__hidden",)

    def __init__(self):
        self.__hidden = 0

    def hide(self):
        self.__hidden += 1


def of(*callbacks, **objects):
    return OwnState(objects, callbacks, (), SHAPES)


def lost(callback, change, *others):
    """Return what no checkpoint has, when `change` has been at a callback."""
    own = of(callback, *others)
    own.on_start(STATE)
    own.state_dict()
    assert own.left_out() == ""
    change(callback)
    saved_and_read(own.state_dict())
    said = own.left_out()
    assert own.left_out() == ""  # said once
    return said


def changed(held):
    held += 1


class Warm:
    """A rule with nothing in it."""


class Cool:
    """Another one."""


CHANGES = {
    "rule": (Warm, lambda one: setattr(one, "held", Cool())),
    "function": (lambda: min, lambda one: setattr(one, "held", max)),
    "number": (lambda: 0, lambda one: setattr(one, "held", 1)),
    "flag": (lambda: None, lambda one: setattr(one, "held", False)),
    "list": (list, lambda one: one.held.append(1)),
    "nested": (lambda: {"a": {1: [{2}]}}, lambda one: one.held["a"][1][0].add(3)),
    "deque": (lambda: deque(maxlen=2), lambda one: one.held.append(1)),
    "bytes": (lambda: b"", lambda one: setattr(one, "held", bytes(2000))),
    "tensor": (lambda: torch.zeros(2), lambda one: changed(one.held)),
    "array": (lambda: np.zeros(2), lambda one: changed(one.held)),
    "shape": (lambda: torch.zeros(2), lambda one: one.held.resize_(1, 2)),
    "records": (
        lambda: ArrayRecord({"w": torch.zeros(1)}),
        lambda one: one.held.update(ArrayRecord({"w": torch.ones(1)})),
    ),
    "metrics": (lambda: MetricRecord({"a": 1}), lambda one: one.held.update(a=2)),
    "random": (lambda: random.Random(0), lambda one: one.held.random()),  # noqa: S311
    "numpy": (lambda: np.random.default_rng(0), lambda one: one.held.random()),
    "torch": (torch.Generator, lambda one: torch.rand(1, generator=one.held)),
    "iterator": (lambda: iter([1, 2]), lambda one: next(one.held)),
    "count": (itertools.count, lambda one: next(one.held)),
    "slots": (Slots, lambda one: one.held.hide()),
    "other model": (
        lambda: torch.nn.Linear(3, 1),
        lambda one: changed(one.held.weight.data),
    ),
    "new": (lambda: 0, lambda one: setattr(one, "other", 1)),
    "gone": (lambda: 0, lambda one: delattr(one, "held")),
    "not known": (
        lambda: torch.zeros(2),
        lambda one: setattr(one, "held", torch.zeros(2).to_sparse()),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_change_is_told_once(name):
    make, change = CHANGES[name]
    attribute = "other" if name == "new" else "held"
    assert lost(Keeping(make()), change) == (
        f"no checkpoint has Keeping.{attribute}, so a run that resumes begins without: "
        "save it by state_dict and load_state_dict"
    )


QUIET = {
    "lock": (threading.Lock, lambda one: one.held.acquire()),
    "condition": (threading.Condition, lambda one: None),
    "thread": (lambda: threading.Thread(target=print), lambda one: None),
    "pool": (lambda: ThreadPoolExecutor(1), lambda one: one.held.submit(int).result()),
    "logger": (
        lambda: logging.getLogger("tests.own"),
        lambda one: one.held.setLevel(logging.ERROR),
    ),
    "weak reference": (lambda: weakref.ref(MODEL), lambda one: one.held()),
    "generator that waits": (lambda: (n for n in range(3)), lambda one: None),
    "loader": (
        lambda: DataLoader(TensorDataset(torch.zeros(4)), shuffle=True),
        lambda one: list(one.held),
    ),
    "ours": (lambda: HistoryWriter("h"), lambda one: setattr(one.held, "every", 2)),
    "itself": (list, lambda one: None),
    "the same number": (lambda: 1, lambda one: setattr(one, "held", np.float64(1.0))),
    "the same list": (lambda: [1], lambda one: setattr(one, "held", (1.0,))),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_no_state_is_not_told(name):
    make, change = QUIET[name]
    one = Keeping(make())
    if name == "itself":
        one.held.append(one)
    assert lost(one, change) == ""


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        (lambda model: model.load_state_dict(STATE.served), False),
        (lambda model: model.load_state_dict(STATE.arrays), False),
        (lambda model: model.load_state_dict(EVALUATED), False),
        (lambda model: changed(model.weight.data), True),
        (lambda model: model.weight.data.lerp_(EVALUATED["weight"], 0.5), True),
    ],
)
def test_a_model_that_has_no_recent_version_is_told(change, is_told, monkeypatch):
    monkeypatch.setattr(STATE, "arrays", {n: t + 1 for n, t in EVALUATED.items()})
    monkeypatch.setattr(STATE, "averaged", {n: t + 2 for n, t in EVALUATED.items()})
    one = Keeping(torch.nn.Linear(2, 1))
    own = of(one)
    own.on_start(STATE)
    own.watched(lambda *_: None)(1, ArrayRecord(EVALUATED))
    own.state_dict()
    assert own.left_out() == ""
    change(one.held)
    own.state_dict()
    assert own.left_out().startswith("no checkpoint has Keeping.held") == is_told


def test_buffers_are_calibrated_after_loading():
    one = Keeping(torch.nn.BatchNorm1d(2))
    own = OwnState({}, [one], (), sorted(map(tuple, ((), (2,), (2,), (2,), (2,)))))
    changed(one.held.running_mean)
    own.state_dict()
    assert own.left_out() == ""


def test_a_file_is_not_told(tmp_path):
    with (tmp_path / "log").open("w") as file:
        assert lost(Keeping(file), lambda one: one.held.write("1")) == ""


def test_what_is_looked_at_by_itself_is_named_once():
    inner = Keeping([])
    said = lost(Keeping(inner), lambda one: one.held.held.append(1), inner)
    assert said.startswith("no checkpoint has Keeping.held, so")


class Keeping1(Keeping):
    """Is called as the second of two of its base is numbered."""


@pytest.mark.parametrize("place", range(4))
def test_each_of_several_callbacks_of_one_name_is_looked_at(place):
    several = [Keeping([]), Keeping1([]), Keeping([]), Keeping([])]
    own = of(*several)
    several[place].held.append(1)
    own.state_dict()
    kind = "Keeping1" if place == 1 else "Keeping"
    assert own.left_out().startswith(f"no checkpoint has {kind}.held, so a run")


def test_what_several_of_one_name_lack_is_said_once(caplog):
    several = [Keeping([]), Keeping([])]
    own = of(*several)
    for each in several:
        each.held.append(1)
    saved = saved_and_read(own.state_dict())
    assert own.left_out().startswith("no checkpoint has Keeping.held, so a run")
    again = of(Keeping([]), Keeping([]))
    again.load_state_dict(saved)
    again.on_resume(STATE)
    again.on_pause(STATE)
    assert "without what it had in Keeping.held when it was saved" in caplog.text


class Derived(Keeping):
    @cached_property
    def table(self):
        return [self.held]

    @property
    def now(self):
        return time.time()


def test_a_cached_property_is_derived():
    assert lost(Derived(1), lambda one: one.table and one.now) == ""


class Starting(Keeping):
    """Sets what it needs when it starts."""

    def on_start(self, state):
        self.began = time.time()
        self.rows = []


class Resuming(Starting):
    def on_resume(self, state):
        pass


def test_what_a_callback_sets_when_it_starts_it_sets_when_it_resumes():
    def started(one, own):
        one.on_start(STATE)
        own.on_start(STATE)
        own.state_dict()
        return own.left_out()

    one = Starting(0)
    own = of(one)
    assert started(one, own) == ""
    one.rows.append(1)
    own.state_dict()
    assert own.left_out().startswith("no checkpoint has Starting.rows, so")
    one = Resuming(0)
    assert started(one, of(one)).startswith(
        "no checkpoint has Resuming.began and Resuming.rows, so"
    )


@pytest.mark.parametrize(("held", "says"), [(1, ""), (2, "Keeping.held"), (None, "")])
def test_what_is_not_as_it_was_is_told_when_the_run_resumes(held, says, caplog):
    one = Keeping(0)
    own = of(one)
    one.held = 1
    if held is None:
        del one.held
    state = saved_and_read(own.state_dict())
    again = Keeping(held)
    if held is None:
        del again.held
    resumed = of(again)
    resumed.load_state_dict(state)
    resumed.on_resume(STATE)
    resumed.on_pause(STATE)
    resumed.on_pause(STATE)
    assert [says in message for message in caplog.messages] == ([True] if says else [])
    resumed.state_dict()
    assert resumed.left_out() == ""


def test_what_comes_again_with_a_pending_evaluation_is_not_told(caplog):
    one, again = Keeping({}), Keeping({})
    own, resumed = of(one), of(again)
    one.held[3] = ArrayRecord({"w": torch.zeros(1)})
    resumed.load_state_dict(saved_and_read(own.state_dict()))
    resumed.on_resume(STATE)
    again.held[3] = ArrayRecord({"w": torch.zeros(1)})  # by configure_evaluate
    resumed.on_pause(STATE)
    assert caplog.messages == []


class Counting(HistoryWriter):
    """Adds to a callback of the package, whose state_dict knows nothing of it."""

    def __init__(self, path):
        super().__init__(path)
        self.count = 0


def test_what_a_subclass_of_one_of_ours_adds(tmp_path):
    def change(one):
        one.count += 1
        one._run = 1  # this one is ours

    said = lost(Counting(tmp_path / "history.jsonl"), change)
    assert said.startswith("no checkpoint has Counting.count, so")


def test_many_are_counted():
    def change(one):
        vars(one).update(dict.fromkeys("abcde", 1))

    said = lost(Keeping(0), change)
    assert said.startswith(
        "no checkpoint has Keeping.a, Keeping.b, Keeping.c and 2 more, so"
    )


class Counts:
    """An `evaluate_fn` that counts."""

    count = 0

    def __call__(self, number, arrays):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_an_evaluation_under_way_is_none_that_the_state_has():
    counts = Counts()
    own = of(evaluate_fn=counts)
    evaluate = own.watched(counts)
    own.on_start(STATE)
    for number in range(3):
        evaluate(number, ArrayRecord())
    assert own.state_dict()["evaluate_fn"]["state"] == {"count": 0}
    own.on_evaluation(STATE, Evaluation("clients", 1, 1, 1.0, None))
    assert own.state_dict()["evaluate_fn"]["state"] == {"count": 0}
    own.on_evaluation(STATE, Evaluation("server", 0, 0, 0.0, None))
    own.on_evaluation(STATE, Evaluation("server", 1, 1, 1.0, None))
    state = saved_and_read(own.state_dict())
    assert state["evaluate_fn"]["state"] == {"count": 2}
    again = Counts()
    resumed = of(evaluate_fn=again)
    resumed.load_state_dict(state)
    resumed.on_resume(STATE)
    assert again.count == 2
    assert resumed.state_dict()["evaluate_fn"]["state"] == {"count": 2}


class Lists(Counts):
    """Returns what it works with, as a `state_dict` of PyTorch does."""

    def __init__(self):
        self.numbers = []
        self.sum = torch.zeros(1)

    def __call__(self, number, arrays):
        self.numbers.append(number)
        self.sum += 1

    def state_dict(self):
        return {"numbers": self.numbers, "sum": self.sum}


def test_what_an_evaluation_has_left_is_not_changed_by_those_after_it():
    lists = Lists()
    own = of(evaluate_fn=lists)
    evaluate = own.watched(lists)
    own.on_start(STATE)
    for number in range(3):
        evaluate(number, ArrayRecord())
    own.on_evaluation(STATE, Evaluation("server", 0, 0, 0.0, None))
    own.on_evaluation(STATE, Evaluation("server", 1, 1, 1.0, None))
    state = saved_and_read(own.state_dict())["evaluate_fn"]["state"]
    assert (state["numbers"], state["sum"].tolist()) == ([0, 1], [2.0])


def test_an_evaluate_fn_that_draws_nothing_still_says_so():
    counts = Counts()
    assert of(evaluate_fn=counts).watched(counts).draws_nothing is False
    counts.draws_nothing = True
    assert of(evaluate_fn=counts).watched(counts).draws_nothing is True


def test_without_anything_of_a_users_own_there_is_nothing_to_do():
    own = of(HistoryWriter("h"), train_config=ConfigRecord(), evaluate_fn=None)
    assert not own.has_any
    assert own.watched(len) is len


def test_a_class_that_another_module_has_made_is_still_a_users():
    made = type("Mine", (AsyncFedAvg,), {})()
    assert type(made).__module__ == "abc"
    assert of(strategy=made).has_any
    assert not of(strategy=AsyncFedAvg()).has_any
