"""The weightings by hand, with the parameters of the FedAsync and FedBuff papers."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from flwr_asyncdrop.aggregation import (
    WEIGHTINGS,
    AdaptivePerGroup,
    Buffered,
    Clipped,
    LatestPerGroup,
    Mixing,
    ProductBuffered,
    ProductMixing,
    Update,
    mean_change,
    weighting,
)
from flwr_asyncdrop.algorithms import AsyncWeighted, FedBuff
from flwr_asyncdrop.exceptions import ConfigError
from tests.aggregation.adapters import random_state
from tests.aggregation.adapters import update as adapted
from tests.states import saved_and_read


def update(staleness, capability=1.0, value=6.0):
    arrays = {"w": torch.tensor([value])}
    return Update(arrays, {}, staleness, 1, capability=capability)


@pytest.mark.parametrize(
    ("name", "a", "b", "staleness", "expected"),
    [
        ("constant", None, None, 100, 1.0),
        # (1 + s)^-a; with a = 1/2 it is FedBuff's 1 / sqrt(1 + s)
        ("polynomial", 0.5, None, 0, 1.0),
        ("polynomial", 0.5, None, 3, 0.5),
        ("polynomial", 0.5, None, 8, 1 / 3),
        ("polynomial", 2.0, None, 1, 0.25),
        ("polynomial", 0.0, None, 9, 1.0),
        # 1 up to b, then 1 / (a (s - b) + 1)
        ("hinge", 10.0, 4, 4, 1.0),
        ("hinge", 10.0, 4, 5, 1 / 11),
        ("hinge", 0.5, 4, 6, 0.5),
    ],
)
def test_by_hand(name, a, b, staleness, expected):
    weigh = weighting(name, a, b)
    assert weigh(update(staleness)) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("name", "given"),
    [("constant", "a"), ("capability", "a"), ("capability", "b"), ("polynomial", "b")],
)
@pytest.mark.parametrize("kind", [AsyncWeighted, FedBuff])
def test_a_parameter_that_a_function_lacks_is_refused(kind, name, given):
    """It had no effect, and nothing said so."""
    made = kind(weighting=name, **{f"weighting_{given}": 2.0})
    with pytest.raises(ConfigError, match=f"^weighting='{name}' has no {given}: leave"):
        made.aggregator(8)


@pytest.mark.parametrize(
    ("name", "staleness", "expected"),
    [
        # FedAsync's own: (1 + s)^-1/2, and 1 / (10 (s - 4) + 1) from s = 4 on
        ("polynomial", 3, 1 / 2),
        ("polynomial", 8, 1 / 3),
        ("hinge", 4, 1.0),
        ("hinge", 5, 1 / 11),
        ("hinge", 6, 1 / 21),
        ("hinge", 14, 1 / 101),
    ],
)
def test_the_parameters_that_nobody_gives_are_fedasyncs(name, staleness, expected):
    given = update(staleness)
    assert weighting(name)(given) == pytest.approx(expected, rel=1e-15)
    mixing = AsyncWeighted(alpha=0.5, weighting=name).aggregator(8)
    state = {"w": torch.tensor([2.0])}
    mixing.merge(state, given)  # from 2 on the way to 6
    assert state["w"].item() == pytest.approx(2 + 4 * 0.5 * expected)


@pytest.mark.parametrize(
    "kind", [partial(AsyncWeighted, alpha=1.0), partial(FedBuff, buffer_size=1)]
)
def test_one_parameter_leaves_the_other_as_it_is(kind):
    """1 / (2 (s - 4) + 1) and 1 / (10 (s - 3) + 1), at s = 6."""
    for changes, expected in (
        ({"weighting_a": 2.0}, 1 / 5),
        ({"weighting_b": 3.0}, 1 / 31),
        ({"weighting_a": 0.0}, 1.0),
    ):
        made = kind(weighting="hinge", **changes).aggregator(8)
        state = {"w": torch.tensor([2.0])}
        made.merge(state, replace(update(6), base={"w": torch.tensor([2.0])}))
        assert state["w"].item() == pytest.approx(2 + 4 * expected)


def test_fedbuffs_is_not_one_over_one_plus_root():
    assert weighting("polynomial")(update(1)) == pytest.approx(1 / math.sqrt(2))


def test_capability_is_the_devices():
    assert weighting("capability")(update(7, capability=0.2)) == 0.2


@pytest.mark.parametrize("name", WEIGHTINGS)
@pytest.mark.parametrize("staleness", [0, 1, 5, 1000])
def test_weights_lie_in_the_unit_interval_and_fall_with_staleness(name, staleness):
    weigh = weighting(name)
    assert 0 < weigh(update(staleness)) <= 1
    assert weigh(update(staleness + 1)) <= weigh(update(staleness))


def test_a_stale_update_does_not_lower_the_rate_of_those_after_it():
    """FedAsync: alpha_t = alpha * s(tau), afresh each time and never multiplied up."""
    mixing = Mixing(0.5, weighting("polynomial", 1.0))
    state = {"w": torch.tensor([2.0])}
    mixing.merge(state, update(staleness=1, value=6.0))
    assert state["w"].item() == 3.0  # 2 + 1/4 of the way to 6
    mixing.merge(state, update(staleness=0, value=7.0))
    assert state["w"].item() == 5.0  # half-way, not less


@pytest.mark.parametrize("weight", [math.nan, math.inf, -0.5, None])
@pytest.mark.parametrize(
    "build",
    [
        lambda weigh: Mixing(0.5, weigh),
        lambda weigh: Buffered(1, weighting=weigh),
        lambda weigh: ProductMixing(0.5, weigh),
        lambda weigh: ProductBuffered(1, weighting=weigh),
    ],
)
def test_a_weight_that_is_none_leaves_the_model_as_it_is(build, weight):
    state = {"w": torch.tensor([2.0])}
    sent = replace(update(staleness=0), base={"w": torch.tensor([2.0])})
    with pytest.raises(ConfigError, match=r"weighting\(update\)=.* must be at least 0"):
        build(lambda update: weight).merge(state, sent)
    assert state["w"].tolist() == [2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("linear",), "weighting='linear' is not known: choose one of capability"),
        (("hinge", -1.0), "a=-1.0"),
        (("hinge", 1.0, float("nan")), "b=nan"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        weighting(*arguments)


class RunningMean:
    """Weigh by the staleness beside the mean of all so far."""

    def __init__(self):
        self.total = self.count = 0

    def __call__(self, update):
        self.total += update.staleness
        self.count += 1
        return 1 / (1 + update.staleness * self.count / max(self.total, 1))

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


@pytest.mark.parametrize(
    "build",
    [
        lambda weigh: Mixing(0.5, weigh),
        lambda weigh: Buffered(2, weighting=weigh),
        lambda weigh: Buffered(2, weighting=weigh, waits=True),
        lambda weigh: ProductMixing(0.5, weigh),
        lambda weigh: ProductBuffered(2, weighting=weigh),
        lambda weigh: Clipped(Mixing(0.5, weigh), 1.0),
    ],
)
def test_a_checkpoint_has_what_a_weighting_remembers(build):
    first, again = build(RunningMean()), build(RunningMean())
    state = random_state(0)
    base = random_state(0)
    sent = [adapted(random_state(n), base, staleness=n) for n in range(6)]
    for each in sent[:3]:
        first.merge(state, each)
    copy = {name: tensor.clone() for name, tensor in state.items()}
    again.load_state_dict(saved_and_read(first.state_dict()))
    for each in sent[3:]:
        first.merge(state, each)
        again.merge(copy, each)
    assert all(torch.equal(copy[name], tensor) for name, tensor in state.items())


class Calming:
    """Combine less and less of the changes."""

    def __init__(self):
        self.count = 0

    def __call__(self, state, changes):
        self.count += 1
        mean = mean_change(state, changes)
        return {name: tensor / self.count for name, tensor in mean.items()}

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize(
    "build",
    [
        lambda combine: Buffered(1, combine=combine),
        lambda combine: Clipped(Buffered(1, combine=combine), 1.0),
        lambda combine: LatestPerGroup(1, combine=combine),
        lambda combine: AdaptivePerGroup(1, combine_fresh=combine),
        lambda combine: AdaptivePerGroup(1, combine_fresh=mean_change, combine=combine),
    ],
)
def test_a_checkpoint_has_what_a_combination_remembers(build):
    first, again = Calming(), Calming()
    state, base = random_state(0), random_state(0)
    aggregator = build(first)
    for number in range(3):
        sent = adapted(random_state(number), base, staleness=number)
        aggregator.merge(state, sent)
    build(again).load_state_dict(saved_and_read(aggregator.state_dict()))
    assert again.count == first.count == 3
    build(again).load_state_dict(saved_and_read(build(mean_change).state_dict()))
    assert again.count == 3  # versions before this one did not save it


def test_a_checkpoint_of_before_leaves_a_weighting_as_it_is():
    weigh = RunningMean()
    Mixing(0.5, weigh).load_state_dict({})
    assert weigh.count == 0
