"""Flower's own parts keep working around these strategies."""

import logging
from functools import partial
from itertools import pairwise, product
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    fixedclipping_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from torch import nn

from flwr_asyncdrop import (
    AsyncDropPlus,
    AsyncFedAvg,
    CodecMod,
    FedBuff,
    FrozenMod,
    HeteroAsyncDrop,
    LocalGrid,
    SyncFedAvg,
    load_submodel,
    speed_levels,
    wire,
)
from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.server.callbacks import Callback
from tests.runs import mlp

CLIP = 0.01
pytestmark = pytest.mark.usefixtures("no_settling")
DROPPING = (HeteroAsyncDrop, AsyncDropPlus)


def normalised():
    """A model with running statistics and a counter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.Linear(64, 3))


def wide():
    """A model whose weights are many enough for a codec."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 400), nn.ReLU(), nn.Linear(400, 3))


def add_one(model, message):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)


def client_app(*mods, net=mlp, train=add_one, of_training=()):
    """Build a client as users write it: load, change the weights, reply."""
    app = ClientApp(mods=list(mods))

    @app.train(mods=list(of_training))
    def reply(message, context):
        model = load_submodel(net(), message.content["arrays"])
        train(model, message)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": 2, "loss": 0.5}),
            }
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 2, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def plain():
    return client_app()


def local_privacy(noise):
    """Noise of a standard deviation that is about so many times a half."""
    return LocalDpMod(CLIP, sensitivity=noise, epsilon=10.0, delta=1e-5)


class Measure:
    """The outermost mod: notes how far what goes back is from what was sent."""

    def __init__(self):
        self.lengths = []

    def __call__(self, message, context, call_next):
        sent = message.content["arrays"].to_torch_state_dict()
        reply = call_next(message, context)
        returned = reply.content["arrays"].to_torch_state_dict()
        self.lengths.append(distance(returned, sent))
        return reply


class Updates(Callback):
    """Notes what came of each task."""

    def __init__(self):
        self.shapes, self.metrics, self.failures = [], [], []
        self.evaluated = 0

    def on_update(self, state, merged):
        self.shapes.append({n: tuple(t.shape) for n, t in merged.reply.arrays.items()})
        self.metrics.append(wire.flat_metrics(merged.reply.metrics))

    def on_failure(self, state, order, kind, reason):
        self.failures.append(kind)

    def on_evaluation(self, state, evaluation):
        self.evaluated += evaluation.metrics is not None


def run(app, strategy=HeteroAsyncDrop, net=mlp, config=(), rounds=2, **options):
    """Train on three devices; return what came of the tasks, and the model."""
    updates = Updates()
    model = (net(), torch.zeros(2, 4)) if strategy in DROPPING else ()
    options = {"in_flight": 3, "fleet": speed_levels, **options}
    strategy = strategy(*model, callbacks=[updates], **options)
    with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
        result = strategy.start(
            grid,
            ArrayRecord(net().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord(dict(config)),
        )
    return updates, result.arrays.to_torch_state_dict()


def distance(arrays, others):
    return float(
        np.sqrt(sum(float(((arrays[n] - others[n]) ** 2).sum()) for n in others))
    )


def moved(arrays):
    return distance(arrays, mlp().state_dict())


@pytest.mark.parametrize(
    "mod", [fixedclipping_mod, adaptiveclipping_mod, local_privacy(1e-7)]
)
@pytest.mark.parametrize(
    "strategy", [AsyncFedAvg, HeteroAsyncDrop, FedBuff, AsyncDropPlus, SyncFedAvg]
)
def test_flowers_privacy_mods_clip_every_update(mod, strategy):
    measure = Measure()
    app = client_app(measure, mod)
    updates, arrays = run(app, strategy, config={"clipping_norm": CLIP})
    assert updates.failures == []
    assert measure.lengths == pytest.approx([CLIP] * 6, rel=0.01)
    assert CLIP / 10 < moved(arrays) < 6 * CLIP
    narrow = updates.shapes[0]["0.weight"][0] < 6
    assert narrow == (strategy in DROPPING)


@pytest.mark.parametrize("mod", [fixedclipping_mod, local_privacy(1e-7)])
def test_clients_evaluate_if_such_a_mod_is_of_training_alone(mod, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    options = {"config": {"clipping_norm": CLIP}, "rounds": 1, "net": wide}
    codec = {"codec": "q8"}  # whose mod is before those of training
    for evaluated, app in (
        (1, client_app(CodecMod(), net=wide, of_training=[mod])),
        (0, client_app(CodecMod(), mod, net=wide)),
    ):
        caplog.clear()
        updates = run(app, **options, **codec)[0]
        assert updates.failures == []
        assert updates.evaluated == evaluated
        advised = "into @app.train(mods=[...])" in caplog.text
        assert advised is not bool(evaluated)


@pytest.mark.parametrize(
    ("app", "config", "fix"),
    [
        (client_app(fixedclipping_mod), {}, r"start\(train_config={'clipping_norm'"),
        (
            client_app(fixedclipping_mod, CodecMod(), net=wide),
            {"clipping_norm": CLIP},
            "before mods that read",
        ),
    ],
)
def test_what_a_mod_lacks_is_said(app, config, fix):
    with pytest.raises(RunError, match=fix):
        run(app, net=wide, config=config, codec="q8")


def test_without_a_mod_the_model_moves_further():
    assert moved(run(plain())[1]) > 1


def test_local_noise_reaches_the_server():
    silent, noisy = Measure(), Measure()
    run(client_app(silent, local_privacy(0.0)), rounds=1)
    run(client_app(noisy, local_privacy(1.0)), rounds=1)
    assert max(silent.lengths) < 1.1 * CLIP
    assert min(noisy.lengths) > 10 * CLIP


def test_adaptive_clipping_says_whether_it_clipped():
    updates, _ = run(client_app(adaptiveclipping_mod), config={"clipping_norm": CLIP})
    assert [metrics["norm_bit"] for metrics in updates.metrics] == [1] * 6
    updates, _ = run(client_app(adaptiveclipping_mod), config={"clipping_norm": 1e3})
    assert [metrics["norm_bit"] for metrics in updates.metrics] == [0] * 6


def test_noise_that_makes_a_variance_negative_costs_the_task_and_not_the_model():
    """As it does to one of so many with certainty."""
    app = client_app(local_privacy(100.0), net=normalised)
    with pytest.raises(RunError, match="a variance cannot be negative"):
        run(app, AsyncFedAvg, normalised)


def test_a_device_that_claims_too_many_examples_costs_its_task():
    assert run(plain(), AsyncFedAvg, max_examples=2)[0].failures == []
    with pytest.raises(RunError, match="raise max-examples if there can be"):
        run(plain(), AsyncFedAvg, max_examples=1)
    with pytest.raises(ConfigError, match="max_examples=0"):
        AsyncFedAvg(max_examples=0)


class TestAgainstALiar:
    """One of three devices asks for a huge change; the others add one."""

    @staticmethod
    def lie(model, message):
        device = wire.read_task(message).partition_id
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e6 if device == 0 else 1.0)

    def moved(self, strategy, **options):
        options = {"buffer_size": 3, **options} if strategy is FedBuff else options
        options = {"outlier_factor": 0, **options}
        _, arrays = run(client_app(train=self.lie), strategy, rounds=1, **options)
        return moved(arrays)

    @pytest.mark.parametrize("strategy", [SyncFedAvg, FedBuff])
    @pytest.mark.parametrize("combine", ["trimmed-mean", "median"])
    def test_the_others_outvote_it(self, strategy, combine):
        honest = np.sqrt(sum(p.numel() for p in mlp().parameters()))
        assert self.moved(strategy) > 1e4
        assert self.moved(strategy, combine=combine) == pytest.approx(honest, rel=0.01)

    @pytest.mark.parametrize("strategy", [AsyncFedAvg, HeteroAsyncDrop, FedBuff])
    def test_clipping_bounds_it(self, strategy):
        assert self.moved(strategy) > 1e4
        assert self.moved(strategy, clip_norm=0.5) < 2


SERVER_FIXED = DifferentialPrivacyServerSideFixedClipping
SERVER_ADAPTIVE = DifferentialPrivacyServerSideAdaptiveClipping
CLIENT_FIXED = DifferentialPrivacyClientSideFixedClipping
CLIENT_ADAPTIVE = DifferentialPrivacyClientSideAdaptiveClipping
MODS = {CLIENT_FIXED: fixedclipping_mod, CLIENT_ADAPTIVE: adaptiveclipping_mod}


def wrapped(
    wrapper,
    strategy=SyncFedAvg,
    *,
    noise=0.0,
    freezes=False,
    look=None,
    inside=lambda strategy: strategy,
    **options,
):
    """Two rounds by Flower's own loop, which drives the synchronous hooks.

    With `look`, eight, after each of which it gets the wrapper and the arrays. What
    the wrapper wraps is what `inside` makes of the strategy.
    """
    codec, clips = options.get("codec"), [MODS[wrapper]] if wrapper in MODS else []
    mods = [CodecMod()] if codec else []
    mods += [FrozenMod(train_mods=clips)] if freezes else []

    def add(model, message):
        with torch.no_grad():
            model[2].weight.add_(1.0)

    app = client_app(*mods, net=wide, train=add, of_training=[] if freezes else clips)
    model = (wide(), torch.zeros(1, 4)) if strategy in DROPPING else ()
    if freezes:
        options["trainable"] = "2"
    strategy = strategy(*model, in_flight=3, fleet=speed_levels, **options)
    name = (
        "initial_clipping_norm" if "Adaptive" in wrapper.__name__ else "clipping_norm"
    )
    norm = {name: CLIP}
    strategy = wrapper(inside(strategy), noise, num_sampled_clients=3, **norm)
    start = ArrayRecord(wide().state_dict())
    with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
        if look is None:
            return strategy.start(grid, start, num_rounds=2)
        return strategy.start(
            grid,
            start,
            num_rounds=8,
            evaluate_fn=lambda _, found: look(strategy, found),
        )


def vector(result):
    return torch.cat([t.flatten() for t in wire.from_record(result.arrays).values()])


class Reading(SyncFedAvg):
    """Reads the arrays of replies, and passes those of `passed` on."""

    passed: ClassVar[int] = 3
    seen: ClassVar[list[float]] = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            arrays = reply.content["arrays"].to_torch_state_dict()
            self.seen.append(float(arrays["2.weight"].mean()))
        return super().aggregate_train(server_round, replies[: self.passed])


class ReadingToo(Reading):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


class Changing(SyncFedAvg):
    def aggregate_train(self, server_round, replies):
        for reply in replies:
            arrays = reply.content["arrays"].to_torch_state_dict()
            reply.content["arrays"] = ArrayRecord(
                {name: torch.zeros_like(tensor) for name, tensor in arrays.items()}
            )
        return super().aggregate_train(server_round, replies)


class TestHooksWithinAWrapper:
    """An overridden `aggregate_train` got coded arrays, which Flower cannot read."""

    @pytest.mark.parametrize("codec", ["q8", "topk-q4"])
    @pytest.mark.parametrize("kind", [Reading, ReadingToo])
    @pytest.mark.parametrize("freezes", [False, True])
    def test_replies_are_decoded(self, kind, codec, freezes):
        Reading.seen.clear()
        options = {"codec": codec, "freezes": freezes}
        found = wrapped(CLIENT_FIXED, kind, **options)
        plain = wrapped(CLIENT_FIXED, **options)
        assert len(Reading.seen) == 6
        assert vector(found).equal(vector(plain))

    def test_what_it_changes_is_merged_so(self):
        app = client_app(CodecMod(), net=wide)
        strategy = Changing(in_flight=3, fleet=speed_levels, codec="q8")
        start = ArrayRecord(wide().state_dict())
        with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
            found = Strategy.start(strategy, grid, start, num_rounds=1)
        assert vector(found).abs().max() < 1e-6

    def test_a_reply_that_cannot_be_read_is_not_given_and_refused(self, caplog):
        Reading.seen.clear()

        def other(message, context, call_next):
            reply = call_next(message, context)
            if "arrays" in reply.content:
                reply.content["arrays"] = ArrayRecord({"other": torch.zeros(2)})
            return reply

        app = client_app(other, CodecMod(), net=wide)
        strategy = Reading(in_flight=3, fleet=speed_levels, codec="q8")
        start = ArrayRecord(wide().state_dict())
        with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
            Strategy.start(strategy, grid, start, num_rounds=1)
        assert not Reading.seen
        assert caplog.text.count("arrays differ from those sent in '0.bias'") == 3

    @pytest.mark.parametrize("passed", [1, 3])
    def test_what_it_leaves_out_is_not_merged(self, passed, monkeypatch, caplog):
        monkeypatch.setattr(Reading, "passed", passed)
        wrapped(CLIENT_FIXED, Reading, codec="q8")
        assert caplog.text.count("did not reply") == 2 * (3 - passed)


def reading(aggregate, seen):
    """Return an `aggregate_train` that reads arrays, and calls another one."""

    def aggregate_train(*given):
        replies = list(given[-1])
        seen.extend(
            float(reply.content["arrays"]["2.weight"].numpy().mean())
            for reply in replies
        )
        return aggregate(*given[:-1], replies)

    return aggregate_train


def on_the_strategy(strategy, seen, monkeypatch):
    strategy.aggregate_train = reading(strategy.aggregate_train, seen)


def in_its_dict(strategy, seen, monkeypatch):
    vars(strategy)["aggregate_train"] = reading(strategy.aggregate_train, seen)


def on_the_class(strategy, seen, monkeypatch):
    hook = reading(SyncFedAvg.aggregate_train, seen)
    monkeypatch.setattr(SyncFedAvg, "aggregate_train", hook)


def plain_loop(strategy):
    """One round by Flower's own loop, with what its codec codes."""
    app = client_app(CodecMod(), net=wide)
    start = ArrayRecord(wide().state_dict())
    with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
        return Strategy.start(strategy, grid, start, num_rounds=1)


class TestHooksSetLater:
    """They got coded arrays where Flower's loop drives a strategy."""

    @pytest.mark.parametrize("way", [on_the_strategy, in_its_dict, on_the_class])
    def test_replies_are_decoded(self, way, monkeypatch):
        seen = []
        options = {"in_flight": 3, "fleet": speed_levels, "codec": "q8"}
        strategy = SyncFedAvg(**options)
        before = vector(plain_loop(SyncFedAvg(**options)))
        way(strategy, seen, monkeypatch)
        assert vector(plain_loop(strategy)).equal(before)
        assert len(seen) == 3

    def test_one_of_a_class_beside_a_subclass_that_has_none(self):
        """Which had its parent's for itself, and took the place of that one."""

        found = []

        class Beside(Reading):
            aggregate_train = reading(Reading.aggregate_train, found)

        class WithNone(Reading):
            pass

        class Mine(WithNone, Beside):
            pass

        plain_loop(Mine(in_flight=3, fleet=speed_levels, codec="q8"))
        assert len(found) == 3

    def test_flowers_loop_refuses_what_a_start_of_ours_does(self):
        strategy = SyncFedAvg(in_flight=3, fleet=speed_levels)
        strategy.aggregate_fit = print
        with pytest.raises(ConfigError, match="SyncFedAvg has 'aggregate_fit' of"):
            plain_loop(strategy)


class Counting(Strategy):
    """A user's wrapper: it is no subclass of ours."""

    def __init__(self, inner):
        self.inner, self.counted = inner, 0

    def configure_train(self, *given):
        return self.inner.configure_train(*given)

    def aggregate_train(self, server_round, replies):
        self.counted += len(replies := list(replies))
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(self, *given):
        return self.inner.configure_evaluate(*given)

    def aggregate_evaluate(self, *given):
        return self.inner.aggregate_evaluate(*given)

    def summary(self):
        self.inner.summary()


class Averaging(Counting):
    aggregate_train = reading(Counting.aggregate_train, [])


class TestAWrapperOfAUser:
    def wrapped(self, kind, codec, inside=lambda strategy: strategy):
        options = {"in_flight": 3, "fleet": speed_levels, "codec": codec}
        found = kind(inside(SyncFedAvg(**options)))
        plain_loop(found)
        return found

    @pytest.mark.parametrize("codec", [None, "packed", "q8"])
    def test_it_is_told_that_coded_arrays_are_not_for_it(self, codec, caplog):
        found = self.wrapped(Counting, codec)
        assert found.counted == 3
        told = "Counting wraps a strategy with a codec, and its aggregate_train gets"
        assert caplog.text.count(told) == (codec == "q8")

    def test_so_it_is_around_one_of_flowers(self, caplog):
        inside = partial(
            CLIENT_FIXED, noise_multiplier=0.0, clipping_norm=9, num_sampled_clients=3
        )
        self.wrapped(Counting, "q8", inside)
        assert caplog.text.count("Counting wraps a strategy") == 1
        caplog.clear()
        self.wrapped(lambda inner: inside(inner), "q8")
        assert "wraps a strategy" not in caplog.text

    def test_one_that_reads_them_fails_loudly(self):
        self.wrapped(Averaging, "packed")
        with pytest.raises(TypeError, match=r"numpy conversion: 'asyncdrop\.q8'"):
            self.wrapped(Averaging, "q8")


# What is beside a wrapper, and the word of docs/robustness.md for a reply that does
# not fit one that subtracts the whole model.
BESIDE = {
    "full models": ({}, ""),
    "submodels": ({"strategy": HeteroAsyncDrop}, "of submodels"),
    "zeroed units": ({"strategy": HeteroAsyncDrop, "mode": "masked"}, "of submodels"),
    "a codec": ({"codec": "q8"}, "the codec codes these"),
    "a frozen part": ({"freezes": True}, "leave out what does not train"),
    "both": ({"codec": "q8", "freezes": True}, "leave out what does not train"),
}


@pytest.mark.parametrize("beside", [each for each in BESIDE if BESIDE[each][1]])
@pytest.mark.parametrize("wrapper", [SERVER_FIXED, SERVER_ADAPTIVE])
def test_one_that_subtracts_is_refused_around_a_wrapper_of_a_user(wrapper, beside):
    """It was not found there, and took zeroed units for changes, for one."""
    options, why = BESIDE[beside]
    client_side = wrapper.__name__.replace("Server", "Client")
    with pytest.raises(ConfigError, match=f"{why}: wrap .* in {client_side}"):
        wrapped(wrapper, inside=Counting, **options)


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize(
    "wrapper", [SERVER_FIXED, SERVER_ADAPTIVE, CLIENT_FIXED, CLIENT_ADAPTIVE]
)
def test_flowers_privacy_wrappers_drive_the_synchronous_hooks(wrapper, beside):
    options, why = BESIDE[beside]
    if wrapper not in MODS and why:
        client_side = wrapper.__name__.replace("Server", "Client")
        with pytest.raises(ConfigError, match=f"{why}: wrap .* in {client_side}"):
            wrapped(wrapper, **options)
        return
    result = wrapped(wrapper, **options)
    assert result.train_metrics_clientapp[2]["loss"] == pytest.approx(0.5)
    assert result.evaluate_metrics_clientapp.keys() == {1, 2}
    way = distance(result.arrays.to_torch_state_dict(), wide().state_dict())
    assert CLIP / 10 < way < 2.5 * CLIP


@pytest.mark.parametrize(
    ("wrapper", "codec", "inside"),
    [
        *product(MODS, ["q2", "topk-q4"], [lambda strategy: strategy]),
        # A wrapper of a user's between them hid it.
        (CLIENT_FIXED, "topk-q4", lambda strategy: Counting(strategy)),
    ],
)
def test_what_a_codec_makes_of_a_clipped_change_is_no_longer_than_the_norm(
    wrapper, codec, inside
):
    """The wrapper's noise is for changes of that length; coding adds some of its own.

    What a codec with feedback owes comes on top of a later change, several norms of it.
    """
    norms, models = [], []

    def look(strategy, found):
        norms.append(strategy.clipping_norm)
        models.append(found.to_torch_state_dict())

    wrapped(wrapper, codec=codec, look=look, inside=inside)
    ways = [distance(now, before) for before, now in pairwise(models)]
    assert len(ways) == 8
    for way, norm in zip(ways, norms[:-1], strict=True):
        assert norm / 10 < way < norm * 1.001


def test_the_noise_of_a_wrapper_reaches_what_does_not_train(caplog, monkeypatch):
    """As docs/robustness.md says; a round later a warning does."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    result = wrapped(CLIENT_FIXED, freezes=True)
    before = wide().state_dict()["0.weight"]
    assert torch.equal(result.arrays.to_torch_state_dict()["0.weight"], before)
    assert "what does not train has changed" not in caplog.text
    result = wrapped(CLIENT_FIXED, freezes=True, noise=0.1)
    assert not torch.equal(result.arrays.to_torch_state_dict()["0.weight"], before)
    assert "what does not train has changed" in caplog.text


def test_metrics_aggregation_functions_get_flowers_arguments():
    calls = []

    def aggregate(records, key):
        calls.append((len(records), key))
        losses = [record["metrics"]["loss"] for record in records]
        return MetricRecord({"mean-loss": sum(losses) / len(losses)})

    strategy = AsyncFedAvg(
        in_flight=3, fleet=speed_levels, train_metrics_aggr_fn=aggregate
    )
    with LocalGrid(plain, num_nodes=3, workers=0) as grid:
        result = strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=2)
    assert calls == [(3, "num-examples")] * 2
    assert result.train_metrics_clientapp[2]["mean-loss"] == 0.5
