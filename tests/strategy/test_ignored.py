"""A hyperparameter that makes no difference is refused, and any other is taken."""

from dataclasses import dataclass, field, fields

import pytest
import torch
from torch import nn

from flwr_asyncdrop import (
    AsyncDropPlus,
    AsyncFedAvg,
    AsyncFedProx,
    AsyncStrategy,
    FedBuff,
    HeteroAsyncDrop,
    SyncFedAvg,
    algorithms,
)
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import Uniform
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.objectives import StandardObjective

MODEL = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
INPUTS = torch.zeros(1, 4)
OWN = {
    "aggregator": Mixing(0.5),
    "masks": RandomMask(0.25),
    "objective": StandardObjective(),
}


@pytest.mark.parametrize(
    ("kind", "own", "name", "value"),
    [
        (FedBuff, "aggregator", "server_lr", 0.5),
        (FedBuff, "aggregator", "server_lr", 1.0),  # its default, but said
        (FedBuff, "aggregator", "buffer_size", 3),
        (FedBuff, "aggregator", "waits", True),
        (AsyncFedAvg, "aggregator", "alpha", 0.25),
        (HeteroAsyncDrop, "aggregator", "alpha", 0.25),
        (HeteroAsyncDrop, "masks", "drop_rate", 0.5),
        (HeteroAsyncDrop, "masks", "score_vectors", False),
        (AsyncDropPlus, "aggregator", "group_memory", False),
        (AsyncFedProx, "objective", "proximal_mu", 0.5),
        (AsyncDropPlus, "objective", "logit_adjustment", 0.5),
    ],
)
def test_what_an_own_part_makes_meaningless_is_refused(kind, own, name, value):
    kind(MODEL, INPUTS, **{name: value})
    kind(MODEL, INPUTS, **{own: OWN[own]})
    with pytest.raises(
        ConfigError, match=rf"{kind.__name__}\({own}=...\).*{name}: set"
    ):
        kind(MODEL, INPUTS, **{own: OWN[own], name: value})


@dataclass(frozen=True)
class Chosen(algorithms.AsyncFedAvg):
    """Chooses devices itself."""

    share: float = 0.5

    def selection(self):
        return Uniform() if self.share else None


def test_one_of_a_selection_that_is_replaced_is_refused():
    AsyncStrategy(algorithm=Chosen(share=0.25))
    with pytest.raises(ConfigError, match=r"\(selection=...\) has no use for share"):
        AsyncStrategy(algorithm=Chosen(share=0.25), selection=Uniform())


def test_one_that_is_set_on_the_algorithm_is_refused_too():
    buffered = algorithms.FedBuff(server_lr=0.5)
    with pytest.raises(ConfigError, match="has no use for server_lr"):
        AsyncStrategy(algorithm=buffered, aggregator=Mixing(0.5))
    AsyncStrategy(algorithm=algorithms.FedBuff(), aggregator=Mixing(0.5))


@pytest.mark.parametrize(
    ("own", "name", "value"),
    [
        ("aggregator", "drop_rate", 0.5),
        ("aggregator", "clip_norm", 1.0),
        ("aggregator", "averaging", 0.5),
        ("masks", "alpha", 0.25),
        ("objective", "drop_rate", 0.5),
    ],
)
def test_what_other_parts_read_is_taken(own, name, value):
    strategy = HeteroAsyncDrop(MODEL, INPUTS, **{own: OWN[own], name: value})
    assert getattr(strategy.algorithm, name) == value


def test_with_no_own_part_all_are_taken():
    for kind in (HeteroAsyncDrop, AsyncDropPlus):
        named = {f.name: f.default for f in fields(kind.algorithm_type)}
        kind(MODEL, INPUTS, **named)


@dataclass(frozen=True, slots=True)
class Slotted(algorithms.Algorithm):
    """One of a user, with slots and a default that is made."""

    steps: tuple[float, ...] = field(default_factory=lambda: (0.5,))

    def aggregator(self, in_flight):
        return Mixing(self.steps[0])


def test_an_algorithm_from_outside_may_have_slots_and_made_defaults():
    AsyncStrategy(algorithm=Slotted())
    AsyncStrategy(algorithm=Slotted(steps=(0.25,)))
    AsyncStrategy(algorithm=Slotted(), aggregator=Mixing(0.5))
    with pytest.raises(ConfigError, match="has no use for steps"):
        AsyncStrategy(algorithm=Slotted(steps=(0.25,)), aggregator=Mixing(0.5))


@pytest.mark.parametrize("kind", [FedBuff, SyncFedAvg])
@pytest.mark.parametrize("combine", [{}, {"combine": "mean"}, {"combine": "median"}])
def test_a_trim_that_trims_nothing_is_refused(kind, combine):
    """As of FedTrimmedAvg(beta=0.3), without the combine that goes with it."""
    kind(combine="trimmed-mean", trim=0.3)
    says = rf"^{kind.__name__}\(trim=...\) has no effect with .*trimmed-mean"
    with pytest.raises(ConfigError, match=says):
        kind(trim=0.3, **combine)
