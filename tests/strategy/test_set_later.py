"""What is set on a strategy after it was made has an effect, or is refused."""

import pytest
import torch

from flwr_asyncdrop import AsyncFedAvg, FedBuff, HeteroAsyncDrop, speed_levels
from flwr_asyncdrop.algorithms import FedBuff as FedBuffAlgorithm
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import RandomMask
from tests.grids import HandlerGrid
from tests.runs import mlp, plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")


def made(kind, **later):
    """Return a strategy of a user's own, which sets these in its ``__init__``."""

    class Mine(kind):
        def __init__(self):
            model = (mlp(), torch.zeros(2, 4)) if kind is HeteroAsyncDrop else ()
            super().__init__(
                *model, in_flight=2, fleet=speed_levels, fraction_evaluate=0.0
            )
            for name, value in later.items():
                setattr(self, name, value)

    return Mine()


def run(strategy, rounds=2):
    grid = HandlerGrid(plus_one, node_ids=(1, 2))
    return strategy.start(grid, record(mlp().state_dict()), num_rounds=rounds), grid


@pytest.mark.parametrize(
    ("kind", "later"),
    [
        (HeteroAsyncDrop, {"drop_rate": 0.5}),
        (HeteroAsyncDrop, {"masks": RandomMask(0.5)}),
        (HeteroAsyncDrop, {"mode": "masked"}),
        (HeteroAsyncDrop, {"duration": "paper"}),
        (HeteroAsyncDrop, {"plan": None}),
        (FedBuff, {"server_lr": 0.1}),
        (FedBuff, {"algorithm": FedBuffAlgorithm(buffer_size=2)}),
        (AsyncFedAvg, {"trainable": "4"}),
    ],
)
def test_what_has_no_effect_any_more_is_refused(kind, later):
    (name,) = later
    says = rf"^{name} of Mine was set .* no effect: pass it, Mine\({name}=...\)$"
    with pytest.raises(ConfigError, match=says):
        run(made(kind, **later))


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"max_seconds": -1.0}, r"max_seconds=-1\.0"),
        ({"queue_ahead": 0.5}, r"queue_ahead=0\.5"),
        ({"outlier_factor": -2}, "outlier_factor=-2"),
        ({"codec": "q3"}, "codec"),
        ({"callbacks": [3]}, r"callbacks\[0\]=3 must be a Callback"),
        ({"probe": "yes"}, "probe='yes'"),
        ({"weighted_by_key": 3}, "weighted_by_key=3"),
        ({"faults": None}, "faults=None"),
    ],
)
def test_what_it_cannot_be_is_refused_as_an_argument_is(later, says):
    with pytest.raises(ConfigError, match=says):
        run(made(AsyncFedAvg, **later))


def test_the_rest_has_its_effect():
    strategy = made(AsyncFedAvg, codec="q8", in_flight=1)
    _, grid = run(strategy, rounds=3)
    assert len(grid.pushed) == 3
    assert "asyncdrop-codec-up" in grid.pushed[0].content["config"]
    assert strategy.codec.label == "q8"


def test_a_driven_one_is_checked_too():
    strategy = made(HeteroAsyncDrop, drop_rate=0.5)
    with pytest.raises(ConfigError, match="drop_rate of Mine was set"):
        strategy.configure_train(
            1, record(mlp().state_dict()), {}, HandlerGrid(plus_one)
        )


def test_an_init_without_that_of_the_strategy():
    class Mine(AsyncFedAvg):
        def __init__(self):
            self.rate = 0.1

    with pytest.raises(ConfigError, match=r"Mine does not call super\(\).__init__"):
        run(Mine())
