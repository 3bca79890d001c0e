"""Runs whose arrays are coded, with real ClientApps: both ways, in every mode."""

import logging
import re
from contextlib import nullcontext

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import (
    AsyncDrop,
    AsyncDropPlus,
    AsyncFedAvg,
    Checkpointer,
    CodecMod,
    DeviceProfile,
    FedBuff,
    FrozenMod,
    HeteroAsyncDrop,
    LayerwiseAsyncDrop,
    LocalGrid,
    StepDecay,
    SyncFedAvg,
    load_submodel,
    speed_levels,
    wire,
)
from flwr_asyncdrop.exceptions import (
    CheckpointError,
    ConfigError,
    Interrupted,
    RunError,
)
from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.codecs import AutoCodec
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.strategy.runs import new_run
from flwr_asyncdrop.wire import DeviceReport
from flwr_asyncdrop.wire.codec import PRESETS, Codec, scheme
from tests.strategy.test_flowers_mods import real_devices

pytestmark = pytest.mark.usefixtures("no_settling")

CODED = [name for name in PRESETS if name != "none"]
DROPPING = (AsyncDrop, HeteroAsyncDrop, AsyncDropPlus)


def net():
    """Two tensors of 256 numbers and more, one with statistics, and small ones."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64),
            nn.ReLU(), nn.Linear(64, 3),
        )  # fmt: skip


def test_a_second_run_on_the_same_grid_is_the_same_run():
    """The devices owe it nothing of what coding has cost the first."""
    with LocalGrid(lambda: client_app(CodecMod()), num_nodes=2, workers=0) as grid:
        first, second = (
            AsyncFedAvg(
                in_flight=2, codec="topk-q4", fleet=speed_levels, fraction_evaluate=0.0
            ).start(grid, ArrayRecord(net().state_dict()), num_rounds=3)
            for _ in range(2)
        )
    one, other = (wire.from_record(result.arrays) for result in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)


def client_app(*mods, step=0.01):
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        model = load_submodel(net(), message.content["arrays"])
        task = wire.read_task(message)
        generator = torch_generator(task.seed, "train", task.partition_id or 0)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise, alpha=step)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": 2}),
            }
        )
        return Message(content, reply_to=message)

    return app


class Updates(Callback):
    """Notes what came of each task."""

    def __init__(self):
        self.merged, self.failures = [], []

    def on_update(self, state, merged):
        self.merged.append(merged)

    def on_failure(self, state, order, kind, reason):
        self.failures.append((kind, reason))


def run(app, strategy=AsyncDrop, rounds=2, callbacks=(), **options):
    updates = Updates()
    model = (net(), torch.zeros(2, 8)) if strategy in DROPPING else ()
    settings = {"in_flight": 3, "fleet": speed_levels, "fraction_evaluate": 0.0}
    strategy = strategy(
        *model, callbacks=[updates, *callbacks], **{**settings, **options}
    )
    with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
        result = strategy.start(
            grid,
            ArrayRecord(net().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({}),
        )
    return updates, result.arrays.to_torch_state_dict()


def distance(arrays, others):
    return (
        sum(float(((arrays[n] - others[n]).double() ** 2).sum()) for n in others) ** 0.5
    )


def total(updates, leg):
    return sum(getattr(merged.order.cost, leg) for merged in updates.merged)


@pytest.mark.parametrize("mode", ["sliced", "masked"])
@pytest.mark.parametrize("name", CODED)
def test_fewer_bytes_both_ways_and_much_the_same_model(name, mode):
    plain, exact = run(client_app(), mode=mode)
    coded, model = run(client_app(CodecMod()), codec=name, mode=mode)
    assert coded.failures == []
    for leg, most in (("bytes_down", 0.5), ("bytes_up", 0.5)):
        assert total(coded, leg) < most * total(plain, leg)
    up = [merged.reply.num_bytes for merged in coded.merged]
    assert all(
        0 < size <= merged.order.cost.bytes_up
        for size, merged in zip(up, coded.merged, strict=True)
    )
    assert all(merged.order.coding.name for merged in coded.merged)
    start = net().state_dict()
    assert distance(model, exact) < distance(exact, start)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.values())


@pytest.mark.parametrize("down", ["q2", "q1", "top10%+q2"])
def test_units_that_are_zeroed_are_no_noise_on_their_way_down(down):
    """Devices would train with small weights in place of the units left out."""
    noisy = Codec(down=scheme(down), up=None)
    chosen = AutoCodec(ladder=(PRESETS["q8"], noisy))
    for codec in (noisy, noisy.name, chosen):
        with pytest.raises(ConfigError, match="mode='masked': units that are left out"):
            AsyncDrop(net(), torch.ones(2, 8), mode="masked", codec=codec)
    AsyncDrop(net(), torch.ones(2, 8), codec=noisy)
    AsyncFedAvg(mode="masked", codec=noisy)  # leaves no units out


@pytest.mark.parametrize("strategy", [AsyncFedAvg, FedBuff, SyncFedAvg, AsyncDrop])
def test_every_kind_of_merging(strategy):
    updates, model = run(client_app(CodecMod()), strategy, codec="q8", rounds=3)
    _, exact = run(client_app(), strategy, rounds=3)
    assert updates.failures == []
    moved = distance(exact, net().state_dict())
    assert distance(model, exact) < 0.2 * moved


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("codec", ["q8", "packed", "topk-q4"])
def test_a_hook_reads_the_arrays_of_replies_as_with_fedavg(codec, packs):
    """They came coded, and from real devices as one."""
    seen, updates = [], Updates()

    class Mine(AsyncFedAvg):
        def aggregate_train(self, server_round, replies):
            for reply in replies:
                assert reply.metadata.src_node_id
                seen.append(reply.content["arrays"].to_torch_state_dict())
                assert list(seen[-1]) == list(net().state_dict())
            return super().aggregate_train(server_round, replies)

    app = client_app(CodecMod())
    fleet = None if packs else speed_levels
    strategy = Mine(
        in_flight=2, codec=codec, fleet=fleet, callbacks=[updates], fraction_evaluate=0
    )
    with (
        LocalGrid(lambda: app, num_nodes=2, workers=0)
        if not packs
        else nullcontext(real_devices(app, packs=True))
    ) as grid:
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=2)
    assert len(seen) == 4
    for found, merged in zip(seen, updates.merged, strict=True):
        assert distance(found, merged.reply.arrays) == 0


def test_arrays_that_come_with_an_evaluation_are_apart():
    app, seen = client_app(CodecMod()), []

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 2})
        content = {"metrics": metrics, "arrays": message.content["arrays"]}
        return Message(RecordDict(content), reply_to=message)

    class Mine(AsyncFedAvg):
        def aggregate_evaluate(self, server_round, replies):
            seen.extend(
                reply.content["arrays"].to_torch_state_dict() for reply in replies
            )
            return super().aggregate_evaluate(server_round, replies)

    def mean(records, key):
        seen.extend(record["arrays"].to_torch_state_dict() for record in records)
        return

    strategy = Mine(in_flight=2, codec="q8", evaluate_metrics_aggr_fn=mean)
    grid = real_devices(app, packs=True)
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=1)
    final = wire.from_record(result.arrays)
    assert len(seen) == 6
    assert all(distance(found, final) == 0 for found in seen)


def test_tasks_of_one_version_of_the_full_model_share_their_code(monkeypatch):
    counted = []
    encode = wire.encode_weights

    def count(*arguments):
        counted.append(arguments)
        return encode(*arguments)

    monkeypatch.setattr(wire, "encode_weights", count)
    updates, _ = run(client_app(CodecMod()), SyncFedAvg, codec="q4")
    assert len(updates.merged) == 6
    assert len(counted) == 2


def test_a_codec_of_ones_own_for_one_way():
    up_only = Codec(None, scheme("q8"))
    updates, _ = run(client_app(CodecMod()), codec=up_only)
    assert updates.failures == []
    assert updates.merged[0].order.coding.name == "none/q8"
    down_only = Codec(scheme("q8"), None)
    updates, _ = run(client_app(CodecMod()), codec=down_only)
    assert updates.failures == []
    cost = updates.merged[0].order.cost
    assert cost.bytes_down < 0.5 * cost.bytes_up


@pytest.mark.parametrize("codec", ["q4", Codec(None, scheme("q4"))])
def test_a_client_without_the_mod_is_told_its_name(codec):
    with pytest.raises(RunError, match=r"ClientApp\(mods=\[CodecMod\(\)\]\)") as caught:
        run(client_app(), codec=codec)
    assert "\n" not in str(caught.value)


def test_a_client_that_loads_with_flowers_own_method_is_told_too():
    app = ClientApp()

    @app.train()
    def train(message, context):
        message.content["arrays"].to_torch_state_dict()

    with pytest.raises(RunError, match=r"ClientApp\(mods=\[CodecMod\(\)\]\)"):
        run(app, codec="q4")


@pytest.mark.parametrize("codec", ["q4", "auto"])
def test_a_model_that_single_precision_cannot_hold_is_refused_before_the_start(codec):
    start = {"w": torch.full((300,), 1e39, dtype=torch.float64)}
    strategy = AsyncFedAvg(in_flight=1, codec=codec, fleet=speed_levels)
    with (
        LocalGrid(lambda: client_app(CodecMod()), num_nodes=2, workers=0) as grid,
        pytest.raises(ConfigError, match=r"codec.*'w' holds NaN, infinity or values"),
    ):
        strategy.start(grid, wire.to_record(start), num_rounds=1)


@pytest.mark.parametrize("bad", ["q5", "Q4", "", "top", 4, True, object()])
def test_a_codec_that_is_none(bad):
    with pytest.raises(ConfigError, match="codec"):
        FedBuff(codec=bad)


def test_time_on_a_slow_link_counts_coded_bytes():
    def fleet(count):
        return [DeviceProfile(1.0, 1000.0, 1000.0)] * count

    ended = {}
    for name in ("none", "q4"):
        updates, _ = run(client_app(CodecMod()), fleet=fleet, codec=name)
        ended[name] = max(m.order.timing.due for m in updates.merged)
        for merged in updates.merged:
            cost, timing = merged.order.cost, merged.order.timing
            seconds = cost.compute + (cost.bytes_down + cost.bytes_up) / 1000
            assert timing.due - timing.dispatched_at == pytest.approx(seconds)
    assert ended["q4"] < 0.5 * ended["none"]


def test_auto_gives_slow_links_fewer_bits():
    rates = [1e9, 60_000.0, 1000.0]

    def fleet(count):
        return [DeviceProfile(1.0, rate, rate) for rate in rates[:count]]

    updates, _ = run(client_app(CodecMod()), fleet=fleet, codec="auto", rounds=4)
    taken = {m.order.device: m.order.coding.name for m in updates.merged}
    assert updates.failures == []
    assert taken[0] == ""
    assert taken[2] not in ("", taken[1])


class Interrupt(Callback):
    """Stops a run as a signal would."""

    def __init__(self, update):
        self.update = update

    def on_pause(self, state):
        if state.updates == self.update:
            raise Interrupted(2)


@pytest.mark.parametrize("name", ["q4", "q2", "auto"])
def test_an_interrupted_run_ends_with_the_same_bits(name, tmp_path):
    def fleet(count):
        return speed_levels(count, bytes_per_second=20_000.0, jitter=0.3)

    def go(folder, callbacks=(), **options):
        checkpointer = Checkpointer(folder, every=1, **options)
        return run(
            client_app(CodecMod()),
            rounds=4,
            codec=name,
            fleet=fleet,
            callbacks=callbacks,
            checkpointer=checkpointer,
        )

    _, whole = go(tmp_path / "whole")
    with pytest.raises(Interrupted):
        go(tmp_path / "cut", [Interrupt(5)])
    _, resumed = go(tmp_path / "cut", resume=tmp_path / "cut")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_a_run_with_feedback_is_not_resumed(tmp_path, caplog):
    """What its devices owe lies with them, and no checkpoint has it."""

    def go(callbacks=(), **options):
        checkpointer = Checkpointer(tmp_path / "run", every=1, **options)
        return run(
            client_app(CodecMod()),
            codec="topk-q4",
            checkpointer=checkpointer,
            callbacks=callbacks,
        )

    # So none is saved, and whoever stops it is not told how it resumes.
    with pytest.raises(Interrupted):
        go([Interrupt(5)])
    assert list(tmp_path.rglob("state.json")) == []
    assert re.search(r"interrupted; codec='topk-q4' .* cannot be resumed", caplog.text)
    assert "to resume:" not in caplog.text
    with pytest.raises(ConfigError, match=r"topk-q4.*cannot be resumed"):
        go(resume=tmp_path / "run")


def test_a_run_that_had_feedback_is_not_resumed_without(tmp_path):
    ways = scheme("q8"), scheme("top5%+q8")

    def go(codec, **options):
        checkpointer = Checkpointer(tmp_path / "run", every=1, **options)
        # Real devices: a run with feedback resumes there, and has checkpoints.
        return run(
            client_app(CodecMod()), codec=codec, checkpointer=checkpointer, fleet=None
        )

    go(Codec(*ways, feedback=True))
    with pytest.raises(CheckpointError, match=r"codec '.*,feedback', now"):
        go(Codec(*ways), resume=tmp_path / "run")


def test_the_same_seed_gives_the_same_bits_with_any_number_of_workers():
    arrays = []
    for workers in (0, 2):
        with LocalGrid(
            "tests.strategy.test_codecs:app", num_nodes=3, workers=workers
        ) as grid:
            strategy = HeteroAsyncDrop(
                net(), torch.zeros(2, 8), codec="q2", in_flight=3, fleet=speed_levels
            )
            start = ArrayRecord(net().state_dict())
            result = strategy.start(grid, start, num_rounds=2)
        arrays.append(result.arrays.to_torch_state_dict())
    assert all(torch.equal(arrays[0][key], arrays[1][key]) for key in arrays[0])


app = client_app(CodecMod())


def test_residual_blocks_that_are_left_out():
    from tests.runs import residual_mlp

    blocks = residual_mlp()
    app = ClientApp(mods=[CodecMod()])

    @app.train()
    def train(message, context):
        model = load_submodel(residual_mlp(), message.content["arrays"])
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": 2}),
        }
        return Message(RecordDict(content), reply_to=message)

    updates = Updates()
    strategy = LayerwiseAsyncDrop(
        blocks, torch.zeros(2, 4), codec="q4", callbacks=[updates], in_flight=2,
        fleet=speed_levels,
    )  # fmt: skip
    with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
        strategy.start(grid, ArrayRecord(blocks.state_dict()), num_rounds=2)
    assert updates.failures == []


def test_what_auto_takes_is_logged(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO):
        run(client_app(CodecMod()), codec="auto")
    assert any("codec" in line and "device" in line for line in caplog.messages)


@pytest.mark.parametrize("mode", ["sliced", "masked"])
@pytest.mark.parametrize("name", ["q4", "topk-q4"])
def test_what_does_not_train_beside_what_is_coded(name, mode):
    def frozen_net():
        made = net()
        made[0].requires_grad_(False)
        return made

    app = ClientApp(mods=[CodecMod(), FrozenMod()])

    @app.train()
    def train(message, context):
        model = load_submodel(frozen_net(), message.content["arrays"])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.01)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": 2}),
        }
        return Message(RecordDict(content), reply_to=message)

    updates = Updates()
    strategy = AsyncDrop(
        frozen_net(), torch.zeros(2, 8), codec=name, mode=mode, callbacks=[updates],
        in_flight=2, fleet=speed_levels, fraction_evaluate=0.0,
    )  # fmt: skip
    start = frozen_net().state_dict()
    with LocalGrid(lambda: app, num_nodes=3, workers=0) as grid:
        result = strategy.start(grid, ArrayRecord(start), num_rounds=3)
    assert updates.failures == []
    trained = result.arrays.to_torch_state_dict()
    assert torch.equal(trained["0.weight"], start["0.weight"])
    moved = trained["3.weight"] - start["3.weight"]
    assert float(moved.max()) > 0.005


def test_a_function_for_the_schedule_is_told_coded_bytes():
    told = []

    def schedule(costs, num_devices):
        told.append(costs[0])
        return StepDecay()

    sent = wire.to_record({"w": torch.zeros(10_000)})
    for codec in (None, "q8"):
        strategy = AsyncFedAvg(codec=codec, in_flight=2, schedule=schedule)
        new_run(strategy, [1, 2], sent, {}, 1.0, in_flight=2, queue_ahead=0)
    plain, coded = told
    assert plain.bytes_down / 5 < coded.bytes_down < plain.bytes_down / 3
    assert plain.bytes_up / 5 < coded.bytes_up < plain.bytes_up / 3


def test_speed_ranks_count_the_transfers_as_they_are_coded():
    """Of 40,000 bytes q4 leaves some 5,000: the quick computer is the faster device."""
    arrays = {"w": torch.zeros(10_000)}
    ranks = {}
    for codec in (None, "q4"):
        strategy = AsyncFedAvg(codec=codec, in_flight=2)
        sent = wire.to_record(arrays)
        run = new_run(strategy, [1, 2], sent, {}, 1.0, in_flight=2, queue_ahead=0)
        fleet, trip = run.fleet, Trip(0.0, 1.0, TaskCost(1.0, 0, 0))
        reports = (1.0, 10_000.0), (4.0, 1e9)  # seconds, bytes a second
        for device, (seconds, bandwidth) in enumerate(reports):
            report = DeviceReport(seconds, bandwidth=bandwidth)
            fleet.update_from_report(device, report, trip)
        ranks[codec] = fleet.speeds.ranks.tolist()
    # 1 s + 8 s against 4 s; and 1 s + 1 s
    assert ranks == {None: [1, 0], "q4": [0, 1]}
