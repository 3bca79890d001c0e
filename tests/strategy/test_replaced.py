"""An argument of another strategy is refused with what takes its place."""

import inspect

import pytest
import torch
from flwr.server import strategy as legacy
from flwr.serverapp import strategy as flower
from torch import nn

from flwr_asyncdrop import AsyncFedProx, AsyncStrategy, FedBuff, HeteroAsyncDrop
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import ConfigError, UnsupportedModelError
from flwr_asyncdrop.strategy.replaced import REPLACED

OWN = {*inspect.signature(AsyncStrategy).parameters} - {"strategy"}
NO_FORESTS = ("FedXgb",)


def arguments(module):
    """Return all arguments of all strategies of Flower that are no trees."""
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and not name.startswith(NO_FORESTS):
            for parameter in inspect.signature(kind).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY or (
                    parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                ):
                    yield name, parameter.name


@pytest.mark.parametrize(
    ("strategy", "name"),
    sorted({(s, n) for s, n in arguments(flower) if s not in ("Result", "Strategy")}),
)
def test_every_argument_of_flowers_strategies_is_known_or_replaced(strategy, name):
    if name in OWN:
        assert name in inspect.signature(flower.FedAvg).parameters
        return
    if strategy.startswith("DifferentialPrivacy") and name not in REPLACED:
        name = "strategy"  # it cannot be given without it
    if name == "server_momentum":
        FedBuff(server_momentum=0.5)
        return
    with pytest.raises(ConfigError) as caught:
        FedBuff(**{name: 1})
    assert REPLACED[name] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", sorted({*inspect.signature(legacy.FedAvg).parameters} - OWN)
)
@pytest.mark.parametrize("kind", [FedBuff, HeteroAsyncDrop])
def test_every_argument_of_the_legacy_fedavg_is_refused_by_name(kind, name):
    with pytest.raises(ConfigError, match=f"{kind.__name__} has no {name!r}: "):
        kind(**{name: None})
    assert name in REPLACED


def test_an_argument_that_the_algorithm_has_counts_as_its_own():
    assert AsyncFedProx(proximal_mu=0.25).algorithm.proximal_mu == 0.25
    with pytest.raises(ConfigError, match=r"use AsyncFedProx\(proximal_mu"):
        FedBuff(proximal_mu=0.25)


def test_a_strategy_of_objects_refuses_them_too():
    with pytest.raises(ConfigError, match="'fraction_fit': it is fraction_train now"):
        AsyncStrategy(aggregator=Mixing(), fraction_fit=0.5)


@pytest.mark.parametrize(
    ("kind", "own", "words"),
    [
        (FedBuff, {}, "FedBuff has no"),
        (AsyncStrategy, {"aggregator": Mixing()}, "AsyncStrategy takes no"),
    ],
)
def test_all_arguments_of_a_project_are_refused_in_one_error(kind, own, words):
    with pytest.raises(ConfigError) as caught:
        kind(fraction_fit=0.5, min_fit_clients=2, eta=0.1, beta_1=0.9, **own)
    assert str(caught.value) == (
        f"{words} 'beta_1', 'eta': {REPLACED['eta']}; 'fraction_fit': it is "
        "fraction_train now; 'min_fit_clients': it is min_train_nodes now"
    )


def test_what_nobody_knows_is_compared_with_what_there_is():
    with pytest.raises(ConfigError, match="did you mean 'fraction_train'"):
        FedBuff(fraction_trian=0.5)
    with pytest.raises(ConfigError, match="leave it out; its hyperparameters are"):
        FedBuff(xyz=1)


@pytest.mark.parametrize("fractions", [(0.5,), (0.5, 0.5)])
def test_positions_are_not_fedavgs(fractions):
    with pytest.raises(ConfigError, match=r"model=0.5 is no nn.Module.*keywords here"):
        FedBuff(*fractions)


TWO = [nn.Linear(4, 6), nn.Linear(6, 3)]


@pytest.mark.parametrize(
    "models", [TWO, (*TWO,), {"a": TWO[0]}, nn.ModuleList(TWO)], ids=type
)
def test_several_models_are_none(models):
    """As a client of vertical learning has an encoder and a head."""
    fits = "one nn.Module whose forward runs them all"
    with pytest.raises((ConfigError, UnsupportedModelError), match=fits):
        HeteroAsyncDrop(models, torch.zeros(1, 4))
