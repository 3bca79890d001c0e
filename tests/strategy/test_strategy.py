import inspect
import logging
import socket
from functools import partial
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from flwr.app import (
    DEFAULT_TTL,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import nn

from flwr_asyncdrop import (
    AsyncDrop,
    AsyncDropPlus,
    AsyncFedAvg,
    AsyncFedProx,
    AsyncFjord,
    AsyncStrategy,
    Checkpointer,
    HeteroAsyncDrop,
    LayerwiseAsyncDrop,
    StepDecay,
    wire,
)
from flwr_asyncdrop.algorithms.registry import ALGORITHMS
from flwr_asyncdrop.app.training import LocalTraining
from flwr_asyncdrop.client import load_submodel
from flwr_asyncdrop.exceptions import (
    AsyncDropError,
    ConfigError,
    RunError,
    UnsupportedModelError,
)
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.objectives import LocalSteps, LocalTask
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.seeding import derive_seed, torch_generator
from flwr_asyncdrop.submodel import merge_
from tests.grids import HandlerGrid
from tests.runs import (
    Recorder,
    answer,
    failing,
    mlp,
    plus_one,
    record,
    residual_mlp,
)
from tests.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("no_settling")

INPUTS = torch.zeros(1, 4)
ZEROS = {"w": torch.zeros(2)}
NETS = dict.fromkeys(STRATEGIES, mlp) | {"layerwise-asyncdrop": residual_mlp}
DROPPING = [name for name, kind in ALGORITHMS.items() if kind().masks() is not None]
MIXING = [name for name, kind in ALGORITHMS.items() if hasattr(kind, "alpha")]
SGD = LocalTraining(steps=3, batch_size=4, lr=0.1, momentum=0.9)


def samples(device):
    generator = torch_generator(0, "samples", device)
    x = torch.randn(12, 4, generator=generator)
    return x, (x.sum(1) > 0).long() + (device % 2)


def train_locally(model, device, seed):
    x, y = samples(device)
    generator = torch_generator(seed, "order")
    local = LocalSteps(LocalTask(model, F.cross_entropy))
    return SGD.train(model, local, lambda at: (x[at], y[at]), len(y), generator)


def client(message, net=mlp):
    """Train a really narrower model on the device's data."""
    task = wire.read_task(message)
    model = load_submodel(net(), message.content["arrays"])
    loss = train_locally(model, task.partition_id, task.seed)
    return answer(message, model.state_dict(), loss=loss)


@pytest.fixture
def log(caplog, monkeypatch):
    """What is logged; Flower's logger does not hand its records on."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO):
        yield caplog


class RoundGrid(HandlerGrid):
    """A grid that serves Flower's synchronous strategies too."""

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for message in messages if (reply := self.handler(message))]


def measuring(train):
    """Let a training handler answer evaluations as well."""

    def handle(message):
        if message.metadata.message_type != MessageType.EVALUATE:
            return train(message)
        node = message.metadata.dst_node_id
        metrics = MetricRecord({"num-examples": node, "loss": float(node)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return handle


def run(algorithm, *, net=None, nodes=5, rounds=4, **changes):
    recorder, net = Recorder(), net or NETS[algorithm]
    settings = {"in_flight": 3, "fleet": speed_levels, "seed": 1, **changes}
    strategy = STRATEGIES[algorithm](net(), INPUTS, callbacks=[recorder], **settings)
    grid = HandlerGrid(partial(client, net=net), node_ids=range(1, nodes + 1))
    result = strategy.start(grid, record(net().state_dict()), num_rounds=rounds)
    return recorder.history(), weights(result.arrays)


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.default, p.kind) for p in found]


def weights(arrays):
    return {name: t.tolist() for name, t in wire.from_record(arrays).items()}


class TestEquivalences:
    @pytest.mark.parametrize("algorithm", sorted({*DROPPING} & {*MIXING}))
    def test_dropping_nothing_is_async_fedavg_bit_for_bit(self, algorithm):
        full = run("async-fedavg", net=NETS[algorithm])
        assert run(algorithm, drop_rate=0.0) == full

    def test_with_one_rank_and_no_average_it_is_fedbuff_bit_for_bit(self):
        lone = {"in_flight": 1, "buffer_size": 1}
        full = run("fedbuff", weighting="constant", **lone)
        plain = {"averaging": 1e-9, "server_lr": 1.0}  # so small that it rounds to none
        plus = partial(run, "asyncdrop-plus", **lone, **plain)
        assert plus(drop_rate=0.0) == full
        assert plus(drop_rate=0.4) != full

    @pytest.mark.parametrize("algorithm", sorted({*DROPPING} & {*MIXING}))
    def test_dropping_something_is_not(self, algorithm):
        full = run("async-fedavg", net=NETS[algorithm])
        assert run(algorithm, drop_rate=0.25) != full

    @pytest.mark.parametrize("algorithm", MIXING)
    def test_one_device_that_replaces_the_model_is_plain_local_training(
        self, algorithm
    ):
        drop = {"drop_rate": 0.0} if algorithm in DROPPING else {}
        lone = {"nodes": 1, "in_flight": 1, "min_available_nodes": 1}
        weight = {"weighting": "constant"} if algorithm == "async-weighted" else {}
        history, final = run(algorithm, alpha=1.0, **lone, **drop, **weight)
        model = NETS[algorithm]()
        for step in range(len(history)):
            train_locally(model, 0, derive_seed(1, "task", 0, step))
        assert final == {name: t.tolist() for name, t in model.state_dict().items()}

    @pytest.mark.parametrize("algorithm", STRATEGIES)
    def test_same_seed_same_run_other_seed_other_run(self, algorithm):
        assert run(algorithm) == run(algorithm)
        assert run(algorithm)[0] != run(algorithm, seed=2)[0]


class TestFlowersContract:
    def test_every_strategy_is_one_of_flowers(self):
        assert isinstance(AsyncFedAvg(), Strategy)
        assert isinstance(HeteroAsyncDrop(mlp(), INPUTS), Strategy)

    def test_start_has_the_parameters_of_flowers_start(self):
        assert parameters(AsyncStrategy.start) == parameters(Strategy.start)

    def test_the_result_has_the_keys_of_fedavgs(self):
        def evaluate(number, arrays):
            return MetricRecord({"round": number})

        everybody = {"fraction_evaluate": 1.0, "min_available_nodes": 3}
        results = [
            strategy.start(
                RoundGrid(measuring(plus_one)),
                record(ZEROS),
                num_rounds=3,
                evaluate_fn=evaluate,
            )
            for strategy in (FedAvg(**everybody), AsyncFedAvg(**everybody))
        ]
        for result in results:
            assert isinstance(result, Result)
            assert set(result.train_metrics_clientapp) == {1, 2, 3}
            assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
            assert set(result.evaluate_metrics_serverapp) == {0, 1, 2, 3}
            # Nodes 1, 2, 3 measure a loss of their number on as many examples.
            for metrics in result.evaluate_metrics_clientapp.values():
                assert metrics["loss"] == pytest.approx((1 + 4 + 9) / 6)
            for number, metrics in result.evaluate_metrics_serverapp.items():
                assert metrics["round"] == number
        fedavg, ours = (set(result.train_metrics_clientapp[1]) for result in results)
        assert fedavg == ours

    def test_a_round_is_as_many_updates_as_devices_in_flight(self):
        grid = HandlerGrid(plus_one, node_ids=range(20))
        AsyncFedAvg(in_flight=4, fraction_evaluate=0.0).start(
            grid, record(ZEROS), num_rounds=5
        )
        assert len(grid.pushed) == 20

    def test_the_metrics_functions_get_records_and_the_weighting_key(self):
        calls = []

        def aggregate(name):
            def function(records, key):
                calls.append((name, records, key))
                return MetricRecord({name: len(records)})

            return function

        def handle(message):
            reply = measuring(plus_one)(message)
            examples = reply.content["metrics"].pop("num-examples")
            reply.content["metrics"]["samples"] = examples
            return reply

        result = AsyncFedAvg(
            in_flight=2,
            fraction_evaluate=1.0,
            weighted_by_key="samples",
            train_metrics_aggr_fn=aggregate("train"),
            evaluate_metrics_aggr_fn=aggregate("evaluate"),
        ).start(HandlerGrid(handle), record(ZEROS), num_rounds=2)
        assert result.train_metrics_clientapp == {
            1: MetricRecord({"train": 2}),
            2: MetricRecord({"train": 2}),
        }
        assert result.evaluate_metrics_clientapp[2] == MetricRecord({"evaluate": 3})
        for _, records, key in calls:
            assert key == "samples"
            assert isinstance(records, list)
            assert all(isinstance(entry, RecordDict) for entry in records)
            assert all("samples" in entry["metrics"] for entry in records)

    def test_what_clients_measure_keeps_its_other_records(self):
        def aggregate(records, key):
            who = [record["about"]["who"] for record in records]
            matrix = sum(record["confusion"]["matrix"].numpy() for record in records)
            return MetricRecord({"named": len(set(who)), "right": int(matrix[1, 1])})

        def handle(message):
            reply = measuring(plus_one)(message)
            node = message.metadata.dst_node_id
            reply.content["about"] = ConfigRecord({"who": f"node {node}"})
            if message.metadata.message_type == MessageType.EVALUATE:
                reply.content["confusion"] = record({"matrix": torch.eye(2)})
            return reply

        strategy = AsyncFedAvg(evaluate_metrics_aggr_fn=aggregate)
        result = strategy.start(HandlerGrid(handle), record(ZEROS), num_rounds=1)
        measured = result.evaluate_metrics_clientapp[1]
        assert measured == MetricRecord({"named": 3, "right": 3})

    def test_the_weight_may_stand_in_any_of_several_metric_records(self):
        def train(message):
            reply = plus_one(message)
            reply.content["a"] = MetricRecord({"loss": 2.0})
            reply.content["z"] = reply.content.pop("metrics")
            return reply

        result = AsyncFedAvg().start(HandlerGrid(train), record(ZEROS), 1)
        assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(2.0)

    def test_records_go_where_the_project_keeps_them(self):
        grid = HandlerGrid(lambda message: answer(message, ZEROS))
        AsyncFedAvg(arrayrecord_key="model", configrecord_key="settings").start(
            grid, record(ZEROS), 1, train_config=ConfigRecord({"epochs": 3})
        )
        content = grid.pushed[0].content
        assert set(content) == {"model", "settings"}
        assert content["settings"]["epochs"] == 3
        assert content["settings"]["server-round"] == 1

    def test_initial_arrays_are_left_alone(self):
        arrays = record({"w": torch.zeros(2)})
        AsyncFedAvg().start(HandlerGrid(plus_one), arrays, num_rounds=2)
        assert wire.from_record(arrays)["w"].tolist() == [0, 0]

    def test_the_run_ends_with_its_last_update_and_evaluation(self):
        rounds = []

        def evaluate(number, arrays):
            rounds.append((number, wire.from_record(arrays)["w"][0].item()))

        result = AsyncFedAvg(in_flight=1, evaluate_every=2).start(
            HandlerGrid(plus_one), record(ZEROS), num_rounds=5, evaluate_fn=evaluate
        )
        assert rounds == [(0, 0.0), (2, 1.0), (4, 2.0), (5, 2.5)]
        assert result.evaluate_metrics_serverapp == {}
        assert wire.from_record(result.arrays)["w"].tolist() == [2.5, 2.5]

    def test_an_error_in_evaluate_fn_ends_the_run_with_that_error(self):
        def evaluate(number, arrays):
            if number == 1:
                raise ZeroDivisionError("in the project's own code")

        with pytest.raises(ZeroDivisionError, match="project's own"):
            AsyncFedAvg().start(
                HandlerGrid(plus_one), record(ZEROS), 50, evaluate_fn=evaluate
            )


class TestSynchronousHooks:
    def test_flowers_own_start_drives_them(self):
        # Both devices of a round train from the same W and are merged one after the
        # other: W -> W + 1/2 -> W + 3/4. Three rounds: 2.25.
        strategy = AsyncFedAvg(in_flight=2, fraction_evaluate=1.0)
        grid = RoundGrid(measuring(plus_one), node_ids=[1, 2])
        rounds = []
        result = Strategy.start(
            strategy,
            grid,
            record(ZEROS),
            num_rounds=3,
            evaluate_fn=lambda number, arrays: rounds.append(
                wire.from_record(arrays)["w"][0].item()
            ),
        )
        assert rounds == [0.0, 0.75, 1.5, 2.25]
        assert wire.from_record(result.arrays)["w"].tolist() == [2.25, 2.25]
        assert set(result.train_metrics_clientapp) == {1, 2, 3}
        assert result.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(5 / 3)

    def test_a_round_merges_the_replies_one_after_the_other(self):
        strategy = AsyncDrop(
            mlp(), INPUTS, drop_rate=0.4, fleet=speed_levels, in_flight=3, alpha=0.25
        )
        grid, initial = HandlerGrid(client), mlp().state_dict()
        messages = list(
            strategy.configure_train(1, record(initial), ConfigRecord(), grid)
        )
        replies = [client(message) for message in messages]
        orders = list(strategy._run.state.in_flight.values())
        # Replies may come in any order: they are merged in that of dispatch.
        arrays, metrics = strategy.aggregate_train(1, reversed(replies))
        expected = {name: tensor.clone() for name, tensor in initial.items()}
        for order, reply in zip(orders, replies, strict=True):
            update = wire.from_record(reply.content["arrays"])
            merge_(expected, update, order.part.indices, 0.25)
        assert weights(arrays) == {n: t.tolist() for n, t in expected.items()}
        losses = [reply.content["metrics"]["loss"] for reply in replies]
        assert metrics["loss"] == pytest.approx(sum(losses) / 3)

    def test_a_failed_reply_costs_its_task(self):
        def train(message):
            first = message.metadata.dst_node_id == 1
            return failing(message) if first else plus_one(message)

        grid = RoundGrid(train, node_ids=[1, 2])
        result = Strategy.start(AsyncFedAvg(in_flight=2), grid, record(ZEROS), 2)
        assert wire.from_record(result.arrays)["w"].tolist() == [1.0, 1.0]

    def test_a_round_without_replies_changes_nothing(self):
        strategy = AsyncFedAvg()
        grid = HandlerGrid(plus_one)
        list(strategy.configure_train(1, record(ZEROS), ConfigRecord(), grid))
        assert strategy.aggregate_train(1, []) == (None, None)
        assert strategy.aggregate_evaluate(1, []) is None

    def test_each_round_has_the_config_it_is_given(self):
        strategy, grid = AsyncFedAvg(), HandlerGrid(plus_one)
        for number in (1, 2):
            config = ConfigRecord({"lr": 0.5 / number, "epochs": number})
            messages = strategy.configure_train(number, record(ZEROS), config, grid)
            configs = [message.content["config"] for message in messages]
            assert {entry["lr"] for entry in configs} == {0.5 / number}
            assert {entry["epochs"] for entry in configs} == {number}
            strategy.aggregate_train(number, [])

    def test_round_one_begins_anew(self):
        strategy = AsyncDrop(mlp(), INPUTS, in_flight=2)
        grid = RoundGrid(plus_one, node_ids=[1, 2])
        arrays = record(mlp().state_dict())
        first, second = (
            weights(Strategy.start(strategy, grid, arrays, 2).arrays) for _ in range(2)
        )
        assert first == second

    def test_the_learning_rate_follows_the_fastest_rank_here_too(self):
        strategy = AsyncFedAvg(
            in_flight=2,
            fleet=speed_levels,
            schedule=StepDecay((2,), 0.1),
            fraction_evaluate=0.0,
        )
        grid = RoundGrid(plus_one, node_ids=[1, 2])
        rates = []
        grid.handler = lambda m: rates.append(m.content["config"]["lr"]) or plus_one(m)
        Strategy.start(
            strategy, grid, record(ZEROS), 3, train_config=ConfigRecord({"lr": 1.0})
        )
        assert rates == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.1, 0.1])

    @pytest.mark.parametrize(
        ("unread", "says"),
        [
            ({"callbacks": [Recorder()]}, "callbacks of AsyncFedAvg would have no"),
            ({"checkpointer": Checkpointer("run")}, "checkpointer of AsyncFedAvg"),
            (
                {"max_seconds": 60, "evaluate_every": 5},
                "evaluate_every, max_seconds of AsyncFedAvg would have no effect",
            ),
            ({"faults": FaultPolicy(late="drop")}, "faults of AsyncFedAvg would"),
            ({"averaging": 0.9}, "averaging of AsyncFedAvg would have no effect"),
            (
                {"schedule": StepDecay((1, 2), unit="seconds")},
                "the schedule counts seconds, and rounds that are driven",
            ),
        ],
    )
    def test_what_its_own_loop_alone_reads_is_refused(
        self, unread, says, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        grid = RoundGrid(plus_one, node_ids=[1, 2])
        strategy = AsyncFedAvg(in_flight=2, **unread)
        with pytest.raises(ConfigError, match=says) as caught:
            Strategy.start(strategy, grid, record(ZEROS), 2)
        assert "\n" not in str(caught.value)
        assert not grid.pushed

    @pytest.mark.parametrize("off", [{}, {"averaging": 0.0}])
    def test_no_average_is_kept_that_nobody_gets(self, off):
        strategy = AsyncDropPlus(drop_rate=0.0, in_flight=2, **off)
        strategy.callbacks = []  # set later, it may be a list
        grid = RoundGrid(plus_one, node_ids=[1, 2])
        result = Strategy.start(strategy, grid, record(ZEROS), 2)
        state = strategy._run.state
        assert state.averaged is None
        assert weights(result.arrays) == weights(wire.to_record(state.served))

    @pytest.mark.parametrize("hook", ["aggregate_train", "configure_evaluate"])
    def test_hooks_out_of_order_are_refused(self, hook):
        strategy = AsyncFedAvg()
        arguments = {
            "aggregate_train": (1, []),
            "configure_evaluate": (1, record(ZEROS), ConfigRecord(), None),
        }[hook]
        with pytest.raises(ConfigError, match=f"{hook} comes after configure_train"):
            getattr(strategy, hook)(*arguments)


class TestEvaluationByClients:
    def messages(self, fraction, nodes=10):
        grid = HandlerGrid(measuring(plus_one), node_ids=range(1, nodes + 1))
        AsyncFedAvg(fraction_evaluate=fraction, in_flight=2, seed=4).start(
            grid,
            record(ZEROS),
            num_rounds=2,
            timeout=77,
            evaluate_config=ConfigRecord({"batch": 9}),
        )
        kind = MessageType.EVALUATE
        return [m for m in grid.pushed if m.metadata.message_type == kind]

    def test_a_share_of_the_nodes_evaluates_the_global_model(self):
        first, *_, last = sent = self.messages(0.3)
        assert len(sent) == 2 * 3
        assert first.content["config"]["batch"] == 9
        assert first.content["config"]["server-round"] == 1
        # W after two updates from a pair of nodes that all began at 0: 1/2, 3/4.
        assert wire.from_record(first.content["arrays"])["w"].tolist() == [0.75] * 2
        assert len({message.metadata.dst_node_id for message in sent}) > 3
        assert last.content["config"]["server-round"] == 2

    def test_their_messages_expire_as_tasks_do(self):
        assert {message.metadata.ttl for message in self.messages(0.5)} == {77}

    def test_none_evaluates_unless_asked(self):
        assert self.messages(0.0) == []

    @pytest.mark.parametrize("broken", [{}, {"num-examples": 0}, {"loss": 1.0}])
    def test_a_client_that_measured_wrong_does_not_count(self, broken, log):
        def handle(message):
            if message.metadata.message_type != MessageType.EVALUATE:
                return plus_one(message)
            if message.metadata.dst_node_id == 1:
                return failing(message)
            if message.metadata.dst_node_id == 2:
                content = RecordDict({"metrics": MetricRecord(broken)})
                return Message(content, reply_to=message)
            return measuring(plus_one)(message)

        result = AsyncFedAvg(fraction_evaluate=1.0, in_flight=2).start(
            HandlerGrid(handle), record(ZEROS), num_rounds=1
        )
        assert log.text.count("no evaluation from node") == 2
        assert result.evaluate_metrics_clientapp[1] == MetricRecord({"loss": 3.0})


class TestTrouble:
    @pytest.mark.usefixtures("fresh_nodes")
    def test_when_all_devices_have_gone_the_run_ends_with_what_it_has(
        self, log, tmp_path
    ):
        def leave(message):
            if len(grid.pushed) == 3:
                grid.node_ids = []
            return plus_one(message)

        grid = HandlerGrid(leave, node_ids=[1, 2])
        history, recorder = HistoryWriter(tmp_path / "history.jsonl"), Recorder()
        strategy = AsyncFedAvg(
            in_flight=2,
            callbacks=[history, recorder],
            fraction_evaluate=0.0,
            log_rounds=False,
        )
        result = strategy.start(grid, record(ZEROS), num_rounds=9, timeout=0.1)
        assert list(result.train_metrics_clientapp) == [1, 2]
        assert weights(result.arrays)["w"] == [recorder.weights[-1]] * 2
        *_, end = read_history(history.path)
        # That they have gone shows at the end of the second round: one still replies.
        assert (end["updates"], end["ended"]) == (5, "timeout")
        assert "no device was there to train for 0.1 s" in log.text
        assert "0 in flight" in log.records[-2].message

    @pytest.mark.parametrize("on_ray", [True, False])
    def test_a_ray_cluster_where_nobody_answers_is_named_once(
        self, on_ray, log, monkeypatch
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        grid = HandlerGrid(plus_one, node_ids=[1, 2])
        grid.has_ray_workers = on_ray
        strategy = AsyncFedAvg(in_flight=2, fraction_evaluate=0.0)
        strategy.start(grid, record(ZEROS), num_rounds=2)
        said = [line for line in log.text.splitlines() if "Ray joins" in line]
        assert len(said) == on_ray
        for line in said:
            assert "WARNING" in line
            assert f"the cluster at {address!r}, which RAY_ADDRESS names" in line
            assert line.endswith("start the cluster, or unset RAY_ADDRESS")

    @pytest.mark.parametrize(
        ("fleet", "ttl"), [(None, 60), (speed_levels, DEFAULT_TTL)]
    )
    def test_only_on_the_wall_clock_a_task_expires_with_the_timeout(self, fleet, ttl):
        """Simulated devices may wait for their turn longer than that."""
        grid = HandlerGrid(plus_one, node_ids=[1, 2])
        strategy = AsyncFedAvg(in_flight=2, fleet=fleet, fraction_evaluate=0.0)
        strategy.start(grid, record(ZEROS), num_rounds=2, timeout=60)
        assert {message.metadata.ttl for message in grid.pushed} == {ttl}

    @pytest.mark.parametrize("late", ["merge", "discount", "drop"])
    def test_what_comes_late_is_dealt_with_as_it_was_told(self, late):
        def fleet(count):
            return [DeviceProfile(1.0, jitter=1.5) for _ in range(count)]

        recorder = Recorder()
        AsyncFedAvg(
            in_flight=3,
            fleet=fleet,
            faults=FaultPolicy(late=late),
            callbacks=[recorder],
        ).start(
            HandlerGrid(plus_one, node_ids=range(1, 6)), record(ZEROS), num_rounds=20
        )
        merged = sum(update.late for update in recorder.merged)
        dropped = sum(kind == "late" for _, kind, _ in recorder.failures)
        assert (merged > 0, dropped > 0) == (late != "drop", late == "drop")

    @pytest.mark.parametrize(("deadline", "gone"), [(3.0, True), (0.0, False)])
    def test_without_deadlines_a_slow_task_is_waited_for(self, deadline, gone):
        def fleet(count):
            return [DeviceProfile(1.0, jitter=2.0) for _ in range(count)]

        recorder = Recorder()
        faults = FaultPolicy(deadline, quarantine_after=0)
        AsyncFedAvg(
            in_flight=3, fleet=fleet, callbacks=[recorder], faults=faults
        ).start(
            HandlerGrid(plus_one, node_ids=range(1, 6)), record(ZEROS), num_rounds=20
        )
        given_up = any(kind == "no-reply" for _, kind, _ in recorder.failures)
        assert given_up == gone


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"in_flight": 0}, "in_flight=0 must be at least 1"),
            ({"in_flight": 2.5}, "in_flight=2.5 must be at least 1, and a whole"),
            ({"min_train_nodes": 1.5}, "min_train_nodes=1.5 must be at least 1, and"),
            ({"evaluate_every": 1.5}, "evaluate_every=1.5 must be at least 1, and"),
            ({"queue_ahead": 0.5}, "queue_ahead=0.5 must be at least 0, and a whole"),
            ({"seed": 0.5}, "seed=0.5 must be at least 0, and a whole number"),
            ({"round_to": 1.5}, "round_to=1.5 must be at least 1, and a whole"),
            ({"seed": -1}, "seed=-1 must be at least 0"),
            ({"mode": "mask"}, "mode='mask' must be 'sliced' or 'masked'"),
            (
                {"scope": "inside"},
                "scope='inside' must be 'all', 'internal' or 'stream'",
            ),
            ({"evaluate_every": 0}, "evaluate_every=0 must be at least 1"),
            ({"min_available_nodes": 0}, "min_available_nodes=0 must be at least 1"),
            ({"fraction_evaluate": 1.5}, r"fraction_evaluate=1.5 must be in \[0, 1\]"),
            ({"fraction_evaluate": float("nan")}, "fraction_evaluate=nan must be"),
            ({"alpha": -0.1}, r"alpha=-0.1 must be in \(0, 1\]"),
            ({"alpha": float("nan")}, "alpha=nan"),
            ({"drop_rate": 1.0}, r"drop_rate=1.0 must be in \[0, 1\)"),
            ({"drop_rate": -0.5}, "drop_rate=-0.5"),
        ],
    )
    def test_the_constructor_echoes_the_value_in_one_line(self, arguments, says):
        with pytest.raises(ConfigError, match=says) as caught:
            AsyncDrop(mlp(), INPUTS, **arguments)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("arguments", [(), (mlp(),)])
    def test_submodels_need_a_model(self, arguments):
        with pytest.raises(ConfigError, match=r"HeteroAsyncDrop makes submodels: pass"):
            HeteroAsyncDrop(*arguments)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"scope": "internal"}, "scope='internal' must be 'all': blocks go"),
            ({"round_to": 16}, "has no .round_to.: leave it out"),
        ],
    )
    def test_blocks_have_neither_scope_nor_width(self, arguments, says):
        with pytest.raises(ConfigError, match=says):
            LayerwiseAsyncDrop(residual_mlp(), INPUTS, **arguments)

    def test_blocks_need_a_model_that_has_some(self):
        with pytest.raises(UnsupportedModelError, match="Sequential has 0 residual bl"):
            LayerwiseAsyncDrop(mlp(), INPUTS)

    @pytest.mark.parametrize(
        "kind", [AsyncDrop, HeteroAsyncDrop, AsyncDropPlus, AsyncFjord]
    )
    @pytest.mark.parametrize(
        "arguments", [(), (torch.nn.Linear(4, 3), INPUTS), (torch.nn.Identity(),)]
    )
    def test_without_submodels_a_model_needs_no_units(self, kind, arguments):
        strategy = kind(*arguments, drop_rate=0.0, in_flight=2, fleet=speed_levels)
        grid = HandlerGrid(plus_one, node_ids=range(1, 4))
        sent = torch.nn.Linear(4, 3).state_dict()
        result = strategy.start(grid, wire.to_record(sent), num_rounds=2)
        moved = wire.from_record(result.arrays)["bias"] - sent["bias"]
        assert bool((moved > 0).all())

    def test_async_fedavg_needs_none(self):
        assert AsyncFedAvg().plan is None

    def test_rounds_are_checked_before_anything_starts(self):
        grid = HandlerGrid(plus_one)
        for wrong in (0, 2.5, float("nan")):
            with pytest.raises(ConfigError, match=f"num_rounds={wrong} must be at"):
                AsyncFedAvg().start(grid, record(ZEROS), num_rounds=wrong)
        assert not grid.pushed

    @pytest.mark.parametrize("timeout", [-1.0, float("nan"), "60", None])
    def test_a_time_that_is_none_too(self, timeout):
        grid = HandlerGrid(plus_one)
        with pytest.raises(ConfigError, match=f"timeout={timeout!r} must be at"):
            AsyncFedAvg().start(grid, record(ZEROS), timeout=timeout)
        assert not grid.pushed

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("mask", [0.0, float("-inf")]),
            ("mask", [0.0, torch.finfo(torch.float32).min]),
            ("w", [float("nan"), 0.0]),
            ("bn.running_var", [-1.0, 1.0]),
        ],
    )
    def test_a_model_that_no_reply_may_return_ends_it_too(self, name, value):
        grid = HandlerGrid(plus_one)
        arrays = record({**ZEROS, name: torch.tensor(value)})
        with pytest.raises(ConfigError, match=f"'{name}' holds .*persistent=False"):
            AsyncFedAvg().start(grid, arrays)
        assert not grid.pushed
        unsigned = record({**ZEROS, name: torch.ones(2, dtype=torch.uint16)})
        with pytest.raises(ConfigError, match=f"'{name}' is of torch.uint16, in which"):
            AsyncFedAvg().start(grid, unsigned)
        if name == "mask":  # it stays where it is, and is served
            result = AsyncFedAvg(fraction_evaluate=0.0, trainable="w").start(
                grid, arrays, num_rounds=1
            )
            assert weights(result.arrays)[name] == value

    @pytest.mark.parametrize("algorithm", DROPPING)
    def test_arrays_of_another_model_end_the_run_before_any_task(self, algorithm):
        strategy = STRATEGIES[algorithm](NETS[algorithm](), INPUTS, drop_rate=0.4)
        grid = HandlerGrid(client)
        other = nn.Sequential(nn.Linear(4, 3)).state_dict()
        with pytest.raises(AsyncDropError) as caught:
            strategy.start(grid, record(other), num_rounds=1)
        assert "\n" not in str(caught.value)
        assert not grid.pushed

    def test_fewer_nodes_than_wanted(self):
        with pytest.raises(RunError, match="2 of 3 nodes connected within 0 s"):
            AsyncFedAvg(min_available_nodes=3).start(
                HandlerGrid(plus_one, node_ids=[1, 2]), record(ZEROS), timeout=0
            )

    def test_nothing_but_failures(self):
        numbers = count(1)
        grid = HandlerGrid(lambda m: failing(m, f"failure {next(numbers)}"))
        strategy = AsyncFedAvg(in_flight=2)
        with pytest.raises(RunError, match=r"last 6 tasks all failed.*failure 6$"):
            strategy.start(grid, record(ZEROS))
        with pytest.raises(ConfigError, match="comes after configure_train"):
            strategy.aggregate_train(1, [])
        # The strategy can be used again.
        grid.handler = plus_one
        assert strategy.start(grid, record(ZEROS), 1).train_metrics_clientapp


def test_fewer_nodes_than_slots_work_and_say_how_to_get_more(log):
    grid = HandlerGrid(plus_one, node_ids=[1, 2])
    AsyncFedAvg(in_flight=8, fleet=speed_levels, fraction_evaluate=0.0).start(
        grid, record(ZEROS), 3
    )
    assert len(grid.pushed) == 6
    assert "2 nodes for 8 tasks in flight" in log.text
    assert "num-supernodes=104" in log.text


def test_a_fleet_knows_how_many_devices_there_are():
    asked = []

    def fleet(count):
        asked.append(count)
        return [DeviceProfile(1.0)] * count

    grid = HandlerGrid(plus_one, node_ids=range(9))
    AsyncFedAvg(fleet=fleet).start(grid, record(ZEROS), 1)
    assert asked == [9]
    partitions = {m.content["config"]["num-partitions"] for m in grid.pushed}
    assert partitions == {9}


def test_the_summary_says_what_the_strategy_does(log):
    HeteroAsyncDrop(mlp(), INPUTS, in_flight=3, seed=11).summary()
    assert "hetero-asyncdrop, seed 11" in log.text
    assert "11 units in 2 groups" in log.text
    assert "Clients' loss" not in log.text


def test_the_summary_says_what_clients_have_to_minimise(log):
    AsyncDropPlus(mlp(), INPUTS).summary()
    AsyncFedProx(proximal_mu=0.25).summary()
    assert "Clients' loss, by their config: logit-adjustment=1.0" in log.text
    assert "Clients' loss, by their config: proximal-mu=0.25" in log.text
