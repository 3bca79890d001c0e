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


def setting(hook, settings, kind=AsyncFedAvg, **arguments):
    """Return a strategy whose hook sets these in round 2."""

    def hooked(self, server_round, *args):
        if server_round == 2:
            for name, value in settings.items():
                setattr(self, name, value)
        return getattr(super(mine, self), hook)(server_round, *args)

    mine = type("Mine", (kind,), {hook: hooked})
    return mine(**arguments)


@pytest.mark.parametrize("hook", ["configure_train", "aggregate_train"])
@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("fraction_train", 0.5, "pass it"),
        ("min_train_nodes", 1, "pass it"),
        ("in_flight", 1, "pass it"),
        ("train_metrics_aggr_fn", max, "pass it"),
        ("weighted_by_key", "n", "pass it"),
        ("max_seconds", 1.0, "pass it"),
        ("callbacks", [], "pass it"),
        ("server_lr", 0.1, "pass it"),
        ("fraction_evaluate", 1.0, "set it in configure_evaluate"),
        ("min_evaluate_nodes", 1, "set it in configure_evaluate"),
    ],
)
def test_what_a_hook_of_training_sets_too_late_is_refused(hook, name, value, fix):
    """A new fraction_train was ignored, and the next round's fraction_evaluate used."""
    strategy = setting(hook, {name: value}, FedBuff, fraction_evaluate=0.0)
    says = rf"^{hook} of Mine has set {name}, which has no effect there: {fix}.* \(docs"
    with pytest.raises(ConfigError, match=says):
        run(strategy, rounds=3)


def test_a_hook_may_set_what_is_so_already_and_names_of_its_own():
    settings = {"fraction_train": 1.0, "min_train_nodes": 2, "model": 3, "rate": 0.1}
    run(setting("configure_train", settings, fraction_evaluate=0.0), rounds=3)


def test_evaluations_read_what_their_hook_sets():
    strategy = setting("configure_evaluate", {"fraction_evaluate": 0.5})
    strategy.min_evaluate_nodes = 1
    _, grid = run(strategy, rounds=3)
    kinds = [message.metadata.message_type for message in grid.pushed]
    assert kinds.count("evaluate") == 2 + 1 + 1
    with pytest.raises(ConfigError, match="configure_evaluate of Mine has set seed"):
        run(setting("configure_evaluate", {"seed": 3}), rounds=3)


def test_what_is_set_between_driven_rounds_is_refused():
    strategy, grid = AsyncFedAvg(), HandlerGrid(plus_one)
    arrays = record(mlp().state_dict())
    strategy.configure_train(1, arrays, {}, grid)
    strategy.fraction_evaluate = 0.5
    strategy.configure_train(2, arrays, {}, grid)
    strategy.fraction_train = 0.5
    with pytest.raises(ConfigError, match="fraction_train of AsyncFedAvg was set aft"):
        strategy.configure_train(3, arrays, {}, grid)
    assert len(strategy.configure_train(1, arrays, {}, grid)) == 2


def test_a_property_in_the_place_of_a_number_of_nodes():
    class Mine(AsyncFedAvg):
        share = 0.5

        @property
        def fraction_train(self):
            return self.share

        @fraction_train.setter
        def fraction_train(self, value):
            assert value is None

        def configure_train(self, server_round, arrays, config, grid):
            self.share = 0.5 if server_round < 3 else 1.0
            return super().configure_train(server_round, arrays, config, grid)

    grid = HandlerGrid(plus_one, node_ids=range(1, 7))
    strategy = Mine(fraction_evaluate=0.0)
    strategy.start(grid, record(mlp().state_dict()), num_rounds=2)
    assert len(grid.pushed) == 2 * 3
    with pytest.raises(ConfigError, match="configure_train of Mine has set fraction_t"):
        strategy.start(grid, record(mlp().state_dict()), num_rounds=3)
