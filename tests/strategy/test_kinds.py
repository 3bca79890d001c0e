"""Arguments of other kinds than they are said to be are refused by their names."""

from dataclasses import dataclass

import pytest
import torch
from flwr.app import MetricRecord

from flwr_asyncdrop import (
    AsyncStrategy,
    Checkpointer,
    FedBuff,
    HeteroAsyncDrop,
    StepDecay,
    load_submodel,
)
from flwr_asyncdrop.aggregation import Buffered, LatestPerGroup, Mixing
from flwr_asyncdrop.algorithms import AsyncDrop
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.selection import Stratified
from flwr_asyncdrop.masks import RandomMask, SmartPartition
from flwr_asyncdrop.objectives import LocalObjective
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.report import write_report
from flwr_asyncdrop.submodel import plan_submodels
from flwr_asyncdrop.wire.codec import Codec
from tests.grids import HandlerGrid
from tests.runs import Recorder, mlp, plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")

INPUTS = torch.zeros(1, 4)
PLAN = plan_submodels(mlp(), INPUTS)  # once, since planning takes long
WRONG = [
    ("algorithm", "asyncdrop", "algorithm='asyncdrop' must be an Algorithm"),
    ("algorithm", AsyncDrop, r"algorithm=AsyncDrop is a class: .*AsyncDrop\(\.\.\.\)"),
    ("aggregator", Mixing, "aggregator=Mixing is a class"),
    ("aggregator", 0.5, "aggregator=0.5 must be an Aggregator"),
    ("masks", 0.25, "masks=0.25 must be a MaskPolicy"),
    ("masks", RandomMask, "masks=RandomMask is a class"),
    ("objective", LocalObjective, "objective=LocalObjective is a class"),
    ("plan", {"0": 6}, r"plan=\{'0': 6\} must be a Plan"),
    ("selection", Stratified, "selection=Stratified is a class"),
    ("schedule", 0.5, "schedule=0.5 must be a Schedule"),
    ("schedule", StepDecay, "schedule=StepDecay is a class"),
    ("schedule", None, "schedule=None must be a Schedule"),
    ("faults", None, "faults=None must be a FaultPolicy"),
    ("fleet", [1.0, 2.0], r"fleet=\[1.0, 2.0\] must be a function"),
    ("checkpointer", "runs/a", "checkpointer='runs/a' must be a Checkpointer"),
    ("checkpointer", Checkpointer, "checkpointer=Checkpointer is a class"),
    ("callbacks", Recorder(), r"callbacks=.*Recorder.* must be a list"),
    ("callbacks", None, "callbacks=None must be a list"),
    ("callbacks", [Recorder], r"callbacks\[0\]=Recorder is a class"),
    ("evaluators", [len], r"evaluators\[0\]=.*len> must be an Evaluator"),
    ("train_metrics_aggr_fn", "mean", "train_metrics_aggr_fn='mean' must be a func"),
    ("arrayrecord_key", None, "arrayrecord_key=None must be a text"),
    ("configrecord_key", "", "configrecord_key='' must be a text, and not empty"),
    ("weighted_by_key", 3, "weighted_by_key=3 must be a text"),
    ("configrecord_key", "arrays", "configrecord_key are both 'arrays'"),
    ("probe", "false", "probe='false' must be True or False"),
    ("log_rounds", 0, "log_rounds=0 must be True or False"),
    ("devices_have_frozen", None, "devices_have_frozen=None must be True or False"),
    ("example_kwargs", 3, "example_kwargs of type int must be a dict"),
]


@pytest.mark.parametrize(
    ("name", "value", "says"), WRONG, ids=[says for _, _, says in WRONG]
)
def test_an_argument_of_another_kind_is_refused(name, value, says):
    given = {"aggregator": Mixing(), name: value}
    with pytest.raises(ConfigError, match=says) as caught:
        AsyncStrategy(mlp(), INPUTS, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("least_saving", "0.5", "must be at least 0"),
        ("least_saving", float("nan"), "must be at least 0"),
        ("score_vectors", "false", "must be True or False"),
        ("is_full", "false", "must be True or False"),
    ],
)
def test_masks_that_say_what_cannot_be_are_refused(name, value, says):
    """NaN sent the full model to all devices, and the text "false" counted as true."""
    masks = RandomMask(0.25)
    setattr(masks, name, value)

    @dataclass(frozen=True)
    class Own(AsyncDrop):
        def masks(self):
            return masks

    for given in ({"aggregator": Mixing(), "masks": masks}, {"algorithm": Own()}):
        with pytest.raises(ConfigError, match=f"{name} of RandomMask={value!r} {says}"):
            AsyncStrategy(mlp(), INPUTS, plan=PLAN, **given)


def test_of_several_the_same_is_refused_in_every_process():
    names = ("masks", "objective", "plan", "selection", "faults", "checkpointer")
    with pytest.raises(ConfigError, match="masks=0 must be"):
        AsyncStrategy(mlp(), INPUTS, aggregator=Mixing(), **dict.fromkeys(names, 0))


@pytest.mark.parametrize(
    ("name", "returned", "says"),
    [
        ("fleet", None, r"fleet\(3\) returned None: return a Device"),
        ("fleet", [1.0, 2.0], r"fleet\(3\) returned 1.0: return a Device"),
        ("schedule", 0.5, r"schedule\(\.\.\.\) returned 0.5: .* for a Schedule"),
        ("schedule", None, r"schedule\(\.\.\.\) returned None"),
    ],
)
def test_what_a_function_returns_is_looked_at(name, returned, says):
    settings = {"fleet": speed_levels, name: lambda *_: returned}
    strategy = HeteroAsyncDrop(mlp(), INPUTS, plan=PLAN, in_flight=2, **settings)
    with pytest.raises(ConfigError, match=says):
        strategy.start(HandlerGrid(plus_one), record(mlp().state_dict()))


def test_a_schedule_of_the_costs_alone_is_refused_in_a_line():
    strategy = HeteroAsyncDrop(mlp(), INPUTS, plan=PLAN, schedule=lambda costs: None)
    with pytest.raises(ConfigError, match=r"^schedule\(costs, num_devices\) cannot be"):
        strategy.start(HandlerGrid(plus_one), record(mlp().state_dict()))


@pytest.mark.parametrize(
    ("name", "function", "says"),
    [
        # As of Flower's legacy strategies.
        (
            "train_metrics_aggr_fn",
            lambda metrics: {"loss": 1.0},
            r"train_metrics_aggr_fn\(records, weighted_by_key\) cannot be called",
        ),
        ("evaluate_metrics_aggr_fn", lambda metrics: {}, "evaluate_metrics_aggr_fn"),
        (
            "fleet",
            lambda least, most: [],
            r"fleet\(num_devices\) cannot be called \(missing",
        ),
    ],
)
def test_a_function_that_does_not_take_what_it_gets_is_refused(name, function, says):
    with pytest.raises(ConfigError, match=rf"^{says}.*: a function gets the "):
        FedBuff(**{name: function})


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda number, arrays, config: None, r"\(.*\) cannot be called .*'config'"),
        (lambda arrays: None, r"\(server_round, arrays\) cannot be called \(too many"),
        ("accuracy", "='accuracy' must be a function"),
    ],
)
def test_so_it_is_of_an_evaluate_fn_before_any_task(function, says):
    """The round's tasks were lost with the TypeError that came out of its thread."""
    grid = HandlerGrid(plus_one)
    with pytest.raises(ConfigError, match=f"^evaluate_fn{says}"):
        FedBuff().start(grid, record(mlp().state_dict()), evaluate_fn=function)
    assert not grid.pushed


def test_a_function_whose_signature_nobody_knows_is_taken():
    FedBuff(train_metrics_aggr_fn=max, evaluate_metrics_aggr_fn=dict)


@pytest.mark.parametrize("returned", [None, {"loss": 1.0}])
def test_aggregate_train_returns_two_things(returned):
    class Mine(HeteroAsyncDrop):
        def aggregate_train(self, server_round, replies):
            super().aggregate_train(server_round, replies)
            return returned

    strategy = Mine(mlp(), INPUTS, plan=PLAN, in_flight=2, fleet=speed_levels)
    with pytest.raises(ConfigError, match=r"^aggregate_train of Mine returns .*super"):
        strategy.start(HandlerGrid(plus_one), record(mlp().state_dict()))


def evaluated(returned):
    """Return what a run has of metrics if `evaluate_fn` returns `returned`."""
    settings = {"in_flight": 2, "fleet": speed_levels, "fraction_evaluate": 0.0}
    result = HeteroAsyncDrop(mlp(), INPUTS, plan=PLAN, **settings).start(
        HandlerGrid(plus_one),
        record(mlp().state_dict()),
        num_rounds=1,
        evaluate_fn=lambda number, arrays: returned,
    )
    return result.evaluate_metrics_serverapp


@pytest.mark.parametrize("wrong", [(0.1, {"acc": 0.5}), 0.5, {"acc": "high"}])
def test_metrics_that_are_none_are_refused(wrong):
    with pytest.raises(
        ConfigError, match=r"^evaluate_fn\(0, \.\.\.\) returned .* Metr"
    ):
        evaluated(wrong)


@pytest.mark.parametrize("metrics", [{"acc": 0.5}, {"acc": torch.tensor(0.5)}])
def test_a_dict_of_metrics_will_do(metrics):
    found = evaluated(metrics)
    assert found == {0: MetricRecord({"acc": 0.5}), 1: MetricRecord({"acc": 0.5})}


@pytest.mark.parametrize(
    ("switch", "build"),
    [
        ("waits", lambda **switch: Buffered(2, **switch)),
        ("waits", lambda **switch: LatestPerGroup(2, **switch)),
        ("waits", lambda **switch: FedBuff(**switch)),
        ("overwrite", lambda **switch: Checkpointer("run", **switch)),
        ("overwrite", lambda **switch: HistoryWriter("run/history", **switch)),
        ("score_vectors", lambda **switch: SmartPartition(0.25, **switch)),
        ("feedback", lambda **switch: Codec(None, None, **switch)),
        ("scale", lambda **switch: load_submodel(mlp(), record({}), **switch)),
        ("paper", lambda **switch: write_report("runs", "report", **switch)),
    ],
)
def test_a_switch_is_no_text(switch, build):
    with pytest.raises(ConfigError, match=f"{switch}='false' must be True or False"):
        build(**{switch: "false"})
