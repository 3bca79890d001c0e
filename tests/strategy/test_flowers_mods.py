"""Flower's mods alone, beside `CodecMod`, beside `FrozenMod` and beside both.

The table says what comes of an order: "" if every task is done, else words of the fix.
"""

import copy
import logging

import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client import mod as legacy_mods
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as mods
from torch import nn

from flwr_asyncdrop import (
    AsyncFedAvg,
    CodecMod,
    FrozenMod,
    LocalGrid,
    load_submodel,
    speed_levels,
    wire,
)
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.readable import one_line
from tests.grids import HandlerGrid
from tests.runs import Recorder, answer, failing

pytestmark = [
    pytest.mark.usefixtures("no_settling"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
CLIP = 0.01


def net(*, freezes=False):
    """Two layers of 256 weights, which a codec codes; the first may be frozen."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
    model[0].requires_grad_(not freezes)
    return model


def local_privacy():
    return mods.LocalDpMod(CLIP, sensitivity=1e-6, epsilon=10.0, delta=1e-5)


CODEC, FROZEN_FIRST = "before mods that read arrays", "FrozenMod(train_mods=[...])"
WRONG = "frozen codec mod"
# How the mods stand, what becomes of one that clips, and of one that adds noise too.
ORDERS = {
    "mod": ("", ""),
    "codec mod": ("", ""),
    "mod codec": (CODEC, CODEC),
    "frozen mod": ("", FROZEN_FIRST),
    "mod frozen": (FROZEN_FIRST, FROZEN_FIRST),
    "frozen(mod)": ("", ""),
    "codec frozen mod": ("", FROZEN_FIRST),
    "codec mod frozen": (FROZEN_FIRST, FROZEN_FIRST),
    "mod codec frozen": (FROZEN_FIRST, FROZEN_FIRST),
    "codec frozen(mod)": ("", ""),
    WRONG: (CODEC, CODEC),
}
# Whose mistake does not depend on what is where.
SOME_ORDERS = ("mod", "codec mod", "mod codec", "frozen mod", "mod frozen")
CLIPS = {"fixed": mods.fixedclipping_mod, "adaptive": mods.adaptiveclipping_mod}
LOOKS = {"message size": mods.message_size_mod, "arrays size": mods.arrays_size_mod}
LEGACY = {
    "legacy fixed": legacy_mods.fixedclipping_mod,
    "legacy adaptive": legacy_mods.adaptiveclipping_mod,
    "legacy local": legacy_mods.LocalDpMod(1.0, 1.0, 1.0, 0.1),
}
SECURE = {"secagg": legacy_mods.secagg_mod, "secagg+": legacy_mods.secaggplus_mod}


def as_list(order, mod):
    """Return the mods that an order names."""
    made = {
        "mod": lambda: mod,
        "codec": CodecMod,
        "frozen": FrozenMod,
        "frozen(mod)": lambda: FrozenMod(train_mods=[mod]),
    }
    return [made[word]() for word in order.split()]


def client_app(of_training, *, freezes, of_all=()):
    app = ClientApp(mods=list(of_all))

    @app.train(mods=list(of_training))
    def train(message, context):
        model = load_submodel(net(freezes=freezes), message.content["arrays"])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * parameter.requires_grad
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": 2}),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        load_submodel(net(freezes=freezes), message.content["arrays"])
        metrics = MetricRecord({"num-examples": 2, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def real_devices(app, *, packs):
    """Return a grid of devices of their own, to which arrays travel as one."""
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in (1, 2, 3)}

    def handle(message):
        number = message.metadata.message_id
        sent = copy.deepcopy(wire.packed_message(message) if packs else message)
        sent.metadata.__dict__["_message_id"] = number
        try:
            return app(sent, contexts[message.metadata.dst_node_id])
        except Exception as error:
            return failing(sent, one_line(error))

    return HandlerGrid(handle)


def outcome(app, *, codec=None, freezes=False, real=False, initial=None, **options):
    """Return why the run ends, "" if all tasks were done, and how far it came."""
    recorder = Recorder()
    strategy = AsyncFedAvg(
        codec=codec,
        in_flight=2,
        fleet=None if real else speed_levels,
        callbacks=[recorder],
        **{
            "fraction_evaluate": 0.0,
            "trainable": "2" if freezes else None,
            **options,
        },
    )
    before = initial or net().state_dict()
    start = ArrayRecord(before)
    grid = (
        real_devices(app, packs=codec is not None)
        if real
        else LocalGrid(lambda: app, num_nodes=3, workers=0)
    )
    config = ConfigRecord({"clipping_norm": CLIP})
    try:
        result = strategy.start(grid, start, num_rounds=2, train_config=config)
    except RunError as error:
        return str(error), 0.0, recorder
    finally:
        getattr(grid, "close", int)()
    assert recorder.failures == []
    final = wire.from_record(result.arrays)
    if freezes:
        assert torch.equal(final["0.weight"], net()[0].weight)
    changes = (final[n].double() - tensor.double() for n, tensor in before.items())
    moved = sum(float(change.square().sum()) for change in changes)
    return "", moved**0.5, recorder


def run(order, mod, *, real):
    app = client_app(as_list(order, mod), freezes="frozen" in order)
    if "frozen" in order or "codec" in order:  # evaluations are completed, too
        app = client_app([], freezes="frozen" in order, of_all=as_list(order, mod))
    codec = "q8" if "codec" in order else None
    return outcome(app, codec=codec, freezes="frozen" in order, real=real)


@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [*CLIPS, "local privacy"])
def test_mods_that_read_arrays(name, order, real):
    mod = CLIPS.get(name) or local_privacy()
    why, moved, recorder = run(order, mod, real=real)
    assert "\n" not in why
    expected = ORDERS[order][name not in CLIPS]
    if expected:
        assert expected in why
        return
    assert why == ""
    # Four updates of this length, each mixed in with a half of it.
    assert CLIP / 2 < moved < 4 * CLIP
    if name == "adaptive":
        bits = [wire.flat_metrics(m.reply.metrics)["norm_bit"] for m in recorder.merged]
        assert bits == [1] * 4


@pytest.mark.parametrize("order", [order for order in ORDERS if order != WRONG])
@pytest.mark.parametrize("name", LOOKS)
def test_mods_that_look_on(name, order):
    why, moved, _ = run(order, LOOKS[name], real=True)
    assert why == ""
    assert moved > 10 * CLIP


@pytest.mark.parametrize("order", SOME_ORDERS)
@pytest.mark.parametrize("name", [*LEGACY, *SECURE])
def test_mods_that_are_refused(name, order):
    expected = "leave secaggplus_mod out" if name in SECURE else "flwr.clientapp.mod"
    assert expected in run(order, {**LEGACY, **SECURE}[name], real=False)[0]


def test_of_flowers_mods_none_is_left_out():
    tried = {*CLIPS.values(), *LOOKS.values(), mods.LocalDpMod}
    assert {getattr(mods, name) for name in mods.__all__} == tried


@pytest.mark.parametrize("name", [*CLIPS, "local privacy"])
def test_mods_within_frozen_mod_let_clients_evaluate(name):
    """All mods are the ClientApp's: the two at a function would be two FrozenMods."""
    mod = CLIPS.get(name) or local_privacy()
    of_all = [CodecMod(), FrozenMod(train_mods=[mod])]
    for freezes in (True, False):
        app = client_app([], freezes=freezes, of_all=of_all)
        options = {"codec": "q8", "freezes": freezes, "fraction_evaluate": 1.0}
        why, moved, recorder = outcome(app, **options)
        assert why == ""
        assert CLIP / 2 < moved < 4 * CLIP, "they clip what trains, if that is all, too"
        assert all(each.metrics is not None for each in recorder.evaluations)
        assert len(recorder.evaluations) == 2


def test_a_frozen_mod_of_training_alone(caplog, monkeypatch):
    """An evaluation has not the whole model either, and its client has no mod."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    app = client_app([FrozenMod()], freezes=True)
    why, _, recorder = outcome(app, freezes=True, fraction_evaluate=1.0)
    assert why == ""
    assert [each.metrics for each in recorder.evaluations] == [None, None]
    assert "ClientApp(mods=[FrozenMod()]), and not into @app.train alone" in caplog.text
    assert "give the ClientApp an @app.evaluate()" not in caplog.text


def test_a_client_app_that_cannot_evaluate(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    app = ClientApp()
    app.train()(lambda m, _: answer(m, wire.from_record(m.content["arrays"])))
    assert outcome(app, fraction_evaluate=1.0)[0] == ""
    assert "round 1: give the ClientApp an @app.evaluate(), or the" in caplog.text


def test_an_error_that_the_size_mods_hide():
    def fails(message, context, call_next):
        return Message(Error(3, "it raised"), reply_to=message)

    for mod in LOOKS.values():
        app = client_app([mod, fails], freezes=False)
        assert "leave them out to see it" in outcome(app)[0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_tensors_of_whole_numbers(dtype):
    """Flower's clipping mods multiply whatever comes; what is frozen does not come."""

    def start():
        return {**net().state_dict(), "0.ids": torch.ones(4, dtype=dtype)}

    def reply(message, context):
        state = wire.from_record(message.content["arrays"])
        return answer(
            message, {n: t + 1 if n == "2.bias" else t for n, t in state.items()}
        )

    for mod, trainable, fix in (
        (mods.fixedclipping_mod, None, "tensors of whole numbers"),
        (FrozenMod(train_mods=[mods.fixedclipping_mod]), trains, ""),
    ):
        app = ClientApp(mods=[mod])
        app.train()(reply)
        why, *_ = outcome(app, initial=start(), trainable=trainable)
        assert fix in why
        assert bool(why) == bool(fix)


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), 0.5])
@pytest.mark.parametrize("of_all", [True, False])
@pytest.mark.parametrize("name", CLIPS)
def test_a_frozen_part_that_is_not_finite(name, of_all, value):
    """The length of the whole change is NaN there, and Flower clips nothing."""

    def start():
        state = {each: tensor.clone() for each, tensor in net().state_dict().items()}
        state["0.weight"][0, 0] = value
        return state

    def reply(message, context):
        state = wire.from_record(message.content["arrays"])
        state["2.bias"] += 1
        return answer(message, state)

    clip = CLIPS[name]
    for order in ([FrozenMod(), clip], [FrozenMod(train_mods=[clip])]):
        app = ClientApp(mods=order if of_all else order[:1])
        app.train(mods=[] if of_all else order[1:])(reply)
        recorder, initial = Recorder(), start()
        strategy = AsyncFedAvg(
            in_flight=2,
            fleet=speed_levels,
            callbacks=[recorder],
            fraction_evaluate=0.0,
            trainable=trains,
        )
        config = ConfigRecord({"clipping_norm": CLIP})
        with LocalGrid(lambda app=app: app, num_nodes=3, workers=0) as grid:
            if value != 0.5 and len(order) == 2:
                with pytest.raises(RunError, match=rf"{clip.__name__} clips nothing"):
                    strategy.start(grid, ArrayRecord(initial), 2, train_config=config)
                continue
            result = strategy.start(grid, ArrayRecord(initial), 2, train_config=config)
        final = wire.from_record(result.arrays)["2.bias"]
        assert float((final - initial["2.bias"]).norm()) < 4 * CLIP


def trains(name):
    return name.startswith("2.")
