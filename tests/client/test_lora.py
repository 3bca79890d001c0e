"""Whole runs with adapters: every unit, every aggregation, both ways to the client."""

import copy
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_asyncdrop import (
    AsyncDrop,
    AsyncFjord,
    FedBuff,
    FrozenMod,
    HeteroAsyncDrop,
    LocalGrid,
    load_lora,
    load_submodel,
    lora_state,
    speed_levels,
)
from flwr_asyncdrop.aggregation import ProductBuffered, ProductMixing
from flwr_asyncdrop.exceptions import AsyncDropError, ShapeError
from flwr_asyncdrop.submodel import lora_plan
from tests.submodel.lora.models import Layers, vectors

peft = pytest.importorskip("peft")


def build():
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["up", "down"])
    return peft.get_peft_model(Layers(), config)


MODEL = build()


def adapted():
    """Return a copy: the evaluation, in a thread of its own, has one as well."""
    return copy.deepcopy(MODEL)


def targets():
    return vectors().roll(1, 1)


def loss_of(model):
    return (model(vectors()) - targets()).square().mean()


def client_app(mods=(), *, frozen="nothing"):
    app = ClientApp(mods=[*mods])

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = adapted()
        for name, parameter in model.named_parameters():
            if frozen in name:
                parameter.requires_grad_(False)
        # Built before the model is narrowed: it trains what is left.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        load_lora(model, msg.content["arrays"])
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(lora_state(model)),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(content=RecordDict(content), reply_to=msg)

    return app


def untouched_client_app():
    """Return a client that knows nothing of ranks: PEFT's own functions."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = adapted()
        arrays = msg.content["arrays"].to_torch_state_dict()
        peft.set_peft_model_state_dict(model, arrays)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(peft.get_peft_model_state_dict(model)),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(content=RecordDict(content), reply_to=msg)

    return app


RUNS = {
    "ranks": (HeteroAsyncDrop, {}, "ranks", None),
    "ranks-product": (HeteroAsyncDrop, {}, "ranks", ProductMixing()),
    "ranks-buffered": (
        AsyncDrop,
        {},
        "ranks",
        ProductBuffered(2, normaliser="counts"),
    ),
    "adapters": (AsyncDrop, {"drop_rate": 0.5}, "adapters", ProductMixing()),
    "layers": (HeteroAsyncDrop, {"drop_rate": 0.4}, "layers", ProductMixing()),
    "layers-buffered": (AsyncDrop, {"drop_rate": 0.4}, "layers", ProductBuffered(2)),
    "layers-ordered": (AsyncFjord, {"drop_rate": 0.4}, "layers", None),
    "all": (FedBuff, {}, "ranks", ProductBuffered(2)),
}


def start(strategy, app):
    losses = []

    def evaluate(server_round, arrays):
        model = adapted()
        load_lora(model, arrays)
        losses.append(loss_of(model).item())
        return MetricRecord({"loss": losses[-1]})

    with LocalGrid(app, num_nodes=4, workers=0) as grid:
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(lora_state(adapted())),
            num_rounds=4,
            evaluate_fn=evaluate,
        )
    return losses, result


def strategy_of(run, **options):
    kind, hyper, units, aggregator = RUNS[run]
    return kind(
        adapted(),
        vectors(),
        plan=lora_plan(adapted(), vectors(), units=units),
        aggregator=aggregator,
        in_flight=3,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        **hyper,
        **options,
    )


@pytest.mark.parametrize("run", RUNS)
def test_a_run_learns(run):
    losses, result = start(strategy_of(run), client_app)
    assert losses[-1] < 0.9 * losses[0]
    arrays = result.arrays.to_torch_state_dict()
    assert {n: t.shape for n, t in arrays.items()} == {
        n: t.shape for n, t in lora_state(adapted()).items()
    }


@pytest.mark.parametrize("run", ["ranks", "ranks-product", "layers"])
def test_a_client_that_cannot_change(run):
    losses, _ = start(strategy_of(run, mode="masked"), untouched_client_app)
    assert losses[-1] < 0.9 * losses[0]


def test_the_same_seed_gives_the_same_bits():
    runs = [start(strategy_of("ranks-product", seed=3), client_app) for _ in range(2)]
    (_, one), (_, other) = runs
    first, second = (r.arrays.to_torch_state_dict() for r in (one, other))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("units", ["ranks", "layers"])
def test_one_factor_alone_travels(units):
    """FFA-LoRA: with the other one frozen it is as if both did."""
    found, travelled = [], set()

    def watch(message, context, call_next):
        travelled.update(message.content["arrays"])
        return call_next(message, context)

    for trainable in (lambda name: "lora_B" in name, lambda name: True):
        mods = [watch, FrozenMod()] if not found else []
        strategy = AsyncDrop(
            adapted(),
            vectors(),
            plan=lora_plan(adapted(), vectors(), units=units),
            trainable=trainable,
            fleet=speed_levels,
            fraction_evaluate=0.0,
            drop_rate=0.4,
        )
        app = partial(client_app, mods, frozen="lora_A")
        found.append(start(strategy, app)[1].arrays.to_torch_state_dict())
    assert all("lora_B" in name for name in travelled)
    one, both = found
    assert list(one) == list(both) == list(lora_state(adapted()))
    assert all(torch.equal(one[name], both[name]) for name in both)


def test_arrays_of_another_model():
    record = ArrayRecord({"fc.weight": torch.zeros(2, 2)})
    with pytest.raises(ShapeError, match="build the same model on the server"):
        load_lora(adapted(), record)


def why_it_ends(strategy, load):
    """Return why a run ends whose clients load the adapters by `load`."""

    def app():
        found = ClientApp()
        found.train()(lambda message, _: load(adapted(), message.content["arrays"]))
        return found

    arrays = ArrayRecord(peft.get_peft_model_state_dict(MODEL))
    with (
        LocalGrid(app, num_nodes=2, workers=0) as grid,
        pytest.raises(AsyncDropError) as caught,
    ):
        strategy.start(grid, arrays, num_rounds=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_peft_project_has_is_told_of_its_counterpart():
    """It was told of load_submodel, and then to build the same module."""
    set_state = peft.set_peft_model_state_dict
    plain = AsyncDrop(adapted(), vectors(), in_flight=2)
    assert "pass plan=lora_plan(model, inputs)" in why_it_ends(plain, load_lora)
    planned = AsyncDrop(plan=lora_plan(adapted(), vectors()), in_flight=2)
    as_before = why_it_ends(
        planned, lambda model, arrays: set_state(model, arrays.to_torch_state_dict())
    )
    assert "load_lora(model, message.content['arrays']) in place of" in as_before
    assert "load_lora(model, arrays) loads" in why_it_ends(planned, load_submodel)
