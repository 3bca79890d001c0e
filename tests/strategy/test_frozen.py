"""Runs in which only what trains travels."""

import logging
import shutil

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy
from safetensors.torch import load_file

from flwr_asyncdrop import Checkpointer, wire
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError, RunError
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.server.callbacks import Callback
from tests.runs import answer, mlp, record
from tests.strategies import STRATEGIES
from tests.strategy.frozen_runs import (
    INPUTS,
    NETS,
    Nodes,
    RoundGrid,
    everything,
    go,
    half,
    train,
    weights,
)

pytestmark = pytest.mark.usefixtures("no_settling")

FROZEN = ("0.weight", "0.bias", "2.weight", "2.bias")
# What numpy.save makes of each tensor: a header of 128 bytes, and float32 numbers.
FROZEN_BYTES = sum(128 + 4 * n for n in (24, 6, 30, 5))
TRAINED_BYTES = sum(128 + 4 * n for n in (15, 3))


@pytest.fixture
def log(caplog, monkeypatch):
    """What is logged; Flower's logger does not hand its records on."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO):
        yield caplog


def slow_links(count):
    """Devices whose tasks take as long as their bytes: 100 a second, and no compute."""
    links = {"bytes_per_second_down": 100.0, "bytes_per_second_up": 100.0}
    return [DeviceProfile(1e-9, **links) for _ in range(count)]


class TestEquivalences:
    @pytest.mark.parametrize("algorithm", STRATEGIES)
    def test_a_frozen_part_trains_as_if_all_had_travelled(self, algorithm):
        """The clients are the same: their modules say what trains."""
        _, recorder, result = go(algorithm)
        _, whole, expected = go(algorithm, trainable=everything)
        assert weights(result.arrays) == weights(expected.arrays)
        assert list(result.arrays) == list(NETS[algorithm]().state_dict())
        assert recorder.times == whole.times
        assert not recorder.failures

    @pytest.mark.parametrize("algorithm", ["hetero-asyncdrop", "asyncdrop"])
    def test_in_masked_mode_too(self, algorithm):
        _, _, result = go(algorithm, mode="masked")
        _, _, expected = go(algorithm, mode="masked", trainable=everything)
        assert weights(result.arrays) == weights(expected.arrays)

    def test_naming_what_the_module_says_changes_nothing(self):
        _, _, result = go()
        for trainable in ("4", ["4.weight", "4.bias"], lambda name: name[0] == "4"):
            _, _, named = go(trainable=trainable)
            assert weights(named.arrays) == weights(result.arrays)

    def test_what_is_frozen_stays_as_it_was(self):
        _, _, result = go("hetero-asyncdrop")
        initial, final = mlp().state_dict(), wire.from_record(result.arrays)
        assert all(torch.equal(final[name], initial[name]) for name in FROZEN)
        assert not torch.equal(final["4.weight"], initial["4.weight"])

    def test_of_a_model_that_trains_as_a_whole_no_message_changes(self):
        nodes = Nodes(node_ids=range(1, 6))
        strategy = STRATEGIES["hetero-asyncdrop"](
            mlp(), INPUTS, fraction_evaluate=0.0, in_flight=3
        )
        strategy.start(nodes.grid, record(mlp().state_dict()), num_rounds=2)
        for _, content in nodes.got:
            assert set(content) == {"arrays", "config"}
            assert not [key for key in content["config"] if "frozen" in key]
            assert set(content["arrays"]) == set(mlp().state_dict())


class TestBytes:
    def test_a_device_downloads_the_frozen_part_once(self):
        nodes, recorder, _ = go(rounds=6)
        state = Last()
        _, again, _ = go(rounds=6, callbacks=[state])
        for each in (recorder, again):
            first = {}
            for order in each.orders:
                brings = first.setdefault(order.device, order.number) == order.number
                expected = TRAINED_BYTES + brings * FROZEN_BYTES
                assert order.cost.bytes_down == expected
                assert order.cost.bytes_up == TRAINED_BYTES
            assert len(first) == 5
        assert nodes.brought == dict.fromkeys(range(1, 6), 1)
        assert state.bytes_down == sum(o.cost.bytes_down for o in again.orders)
        assert state.bytes_up == len(again.merged) * TRAINED_BYTES

    def test_by_the_clock_too(self):
        _, recorder, _ = go(fleet=slow_links, in_flight=5, rounds=2)
        first, second = recorder.times[:5], recorder.times[5:]
        both = 2 * TRAINED_BYTES
        assert first == pytest.approx([(both + FROZEN_BYTES) / 100] * 5)
        assert second == pytest.approx([(2 * both + FROZEN_BYTES) / 100] * 5)

    def test_devices_that_have_it_download_nothing(self):
        own = Nodes(own=lambda _: mlp(), node_ids=range(1, 6))
        nodes, recorder, _ = go(nodes=own, devices_have_frozen=True)
        assert {order.cost.bytes_down for order in recorder.orders} == {TRAINED_BYTES}
        assert (nodes.brought, nodes.asked) == ({}, 0)

    def test_who_asks_does_not_matter_to_the_virtual_clock(self):
        """The same history, whatever the processes happen to have."""
        found = []
        for own in (None, lambda _: mlp(), lambda _: mlp(seed=5)):
            nodes = Nodes(own=own, node_ids=range(1, 6))
            _, recorder, result = go(
                "fedbuff", nodes, devices_have_frozen=True, fleet=slow_links
            )
            history = recorder.history()
            found.append((history, recorder.times, weights(result.arrays)))
            assert not recorder.failures
            assert (nodes.asked > 0) == (own is None or len(nodes.brought) > 0)
        assert found[0] == found[1] == found[2]

    def test_a_reply_carries_what_trains_and_no_more(self):
        nodes, _, _ = go("hetero-asyncdrop")
        for _, content in nodes.replied:
            assert set(content["arrays"]) == {"4.weight", "4.bias"}


class Last(Callback):
    """The books at the end."""

    def on_end(self, state):
        self.bytes_down, self.bytes_up = state.bytes_down, state.bytes_up
        self.failures, self.arrays = dict(state.failures), state.arrays
        self.served = state.served


class TestRealDevices:
    """On the wall clock devices say what they have."""

    def go(self, nodes, **changes):
        changes = {"fleet": None, "rounds": 5, "callbacks": [], **changes}
        state = Last()
        changes["callbacks"] = [state, *changes["callbacks"]]
        nodes, recorder, result = go(nodes=nodes, **changes)
        return state, recorder, result

    def test_each_asks_and_gets_it_once(self):
        nodes = Nodes(node_ids=range(1, 4))
        state, recorder, result = self.go(nodes)
        assert nodes.asked == 3
        assert nodes.brought == {1: 1, 2: 1, 3: 1}
        assert not state.failures
        assert not recorder.failures
        assert len(recorder.merged) == 15
        # Three tasks that were not done went out, too.
        sent = TRAINED_BYTES * len(recorder.orders) + 3 * FROZEN_BYTES
        assert state.bytes_down == sent
        initial, final = mlp().state_dict(), wire.from_record(result.arrays)
        assert all(torch.equal(final[name], initial[name]) for name in FROZEN)

    def test_those_that_have_it_get_nothing(self):
        nodes = Nodes(own=lambda _: mlp(), node_ids=range(1, 4))
        state, _, _ = self.go(nodes)
        assert (nodes.asked, nodes.brought) == (0, {})
        assert state.bytes_down == 15 * TRAINED_BYTES

    def test_one_whose_model_is_another_gets_the_servers(self):
        nodes = Nodes(own=lambda _: mlp(seed=7), node_ids=range(1, 4))
        self.go(nodes)
        assert nodes.brought == {1: 1, 2: 1, 3: 1}

    def test_a_new_process_has_what_the_device_keeps(self):
        nodes = Nodes(node_ids=range(1, 4))
        self.go(nodes, callbacks=[Restarts(nodes, forgets=False)])
        assert nodes.brought == {1: 1, 2: 1, 3: 1}

    def test_a_device_that_has_forgotten_it_asks_again(self):
        nodes = Nodes(node_ids=range(1, 4))
        state, recorder, _ = self.go(nodes, callbacks=[Restarts(nodes, forgets=True)])
        assert nodes.brought == {1: 2, 2: 1, 3: 1}
        assert not state.failures
        assert not recorder.failures

    def test_a_queue_does_not_bring_it_twice(self):
        nodes = Nodes(node_ids=range(1, 4))
        state, _, _ = self.go(nodes, queue_ahead=1)
        assert nodes.brought == {1: 1, 2: 1, 3: 1}
        assert not state.failures

    def test_asking_for_ever_ends_the_run_with_one_line(self):
        def asks(message, context, net):
            raise AssertionError("it never comes to that")

        nodes = Nodes(node_ids=range(1, 4), train=asks)
        nodes.new_mod = lambda: (
            lambda message, context, call_next: wire.ask_for_frozen(
                message, wire.read_frozen(message).sha256
            )
        )
        with pytest.raises(RunError, match="asks for the frozen tensors") as error:
            self.go(nodes)
        assert "\n" not in str(error.value)
        assert len(nodes.got) < 40

    def test_one_that_asks_for_ever_costs_its_tasks_alone(self):
        nodes = Nodes(node_ids=range(1, 4))
        new_mod = nodes.new_mod

        def asks(message, context, call_next):
            return wire.ask_for_frozen(message, wire.read_frozen(message).sha256)

        nodes.mods[1] = asks
        nodes.new_mod = new_mod
        state, recorder, _ = self.go(nodes)
        assert {device for device, _, _ in recorder.failures} == {0}
        assert state.failures.keys() == {"frozen"}
        assert len(recorder.merged) == 15

    def test_submodels_of_a_frozen_backbone(self):
        nodes = Nodes(node_ids=range(1, 4))
        state, _, _ = self.go(nodes, algorithm="hetero-asyncdrop")
        assert not state.failures
        assert nodes.brought == {1: 1, 2: 1, 3: 1}


class Restarts(Callback):
    """Restarts node 1 once, in the middle of the run."""

    def __init__(self, nodes, *, forgets):
        self.nodes, self.forgets = nodes, forgets

    def on_update(self, state, merged):
        if state.updates == 8:
            self.nodes.restart(1, forgets=self.forgets)


class TestWithoutTheMod:
    def run(self, train, **changes):
        nodes = Nodes(node_ids=range(1, 4), train=train)
        nodes.new_mod = lambda: lambda message, context, app: app(message, context)
        with pytest.raises(RunError) as error:
            go(nodes=nodes, **changes)
        return str(error.value)

    @pytest.mark.parametrize("algorithm", ["async-fedavg", "hetero-asyncdrop"])
    def test_load_submodel(self, algorithm):
        reason = self.run(train, algorithm=algorithm)
        assert "also needs the tensor 0.bias" in reason
        assert "ClientApp(mods=[FrozenMod()])" in reason

    def test_load_state_dict(self):
        def client(message, context, net):
            arrays = message.content["arrays"].to_torch_state_dict()
            return answer(message, half().load_state_dict(arrays))

        assert "ClientApp(mods=[FrozenMod()])" in self.run(client)

    def test_a_client_that_loads_what_comes_and_returns_all(self):
        def client(message, context, net):
            model = half()
            arrays = message.content["arrays"].to_torch_state_dict()
            model.load_state_dict(arrays, strict=False)
            return answer(message, model.state_dict())

        assert "ClientApp(mods=[FrozenMod()])" in self.run(client)


class TestEvaluation:
    def test_clients_evaluate_the_whole_model(self):
        measured = []
        for trainable in (None, everything):
            _, _, result = go(
                fraction_evaluate=1.0, trainable=trainable, rounds=3, in_flight=5
            )
            measured.append(
                {n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()}
            )
        assert measured[0] == measured[1]
        assert len(measured[0]) == 3

    @pytest.mark.parametrize("fleet", [None, slow_links], ids=["real", "simulated"])
    def test_without_sending_what_they_have(self, fleet):
        nodes = Nodes(node_ids=range(1, 4))
        _, _, result = go(nodes=nodes, fleet=fleet, fraction_evaluate=1.0, rounds=4)
        assert nodes.brought == {1: 1, 2: 1, 3: 1}
        assert len(result.evaluate_metrics_clientapp) == 4

    def test_a_node_that_has_forgotten_gets_it_for_an_evaluation(self):
        nodes = Nodes(node_ids=range(1, 4))

        class Forgets(Callback):
            def on_round(self, state, number):
                for node in (1, 2, 3):
                    nodes.restart(node)

        _, _, result = go(
            nodes=nodes,
            fleet=None,
            fraction_evaluate=1.0,
            rounds=3,
            callbacks=[Forgets()],
        )
        examples = [dict(m) for m in result.evaluate_metrics_clientapp.values()]
        assert len(examples) == 3
        assert all(count > 1 for count in nodes.brought.values())

    def test_the_server_and_the_result_have_the_whole_model(self):
        seen = []

        def evaluate(number, arrays):
            seen.append(list(arrays))
            return MetricRecord({"n": number})

        state = Last()
        _, _, result = go(callbacks=[state], start={"evaluate_fn": evaluate})
        names = list(mlp().state_dict())
        assert seen
        assert all(each == names for each in seen)
        assert list(result.arrays) == names
        assert list(state.arrays) == ["4.weight", "4.bias"]
        assert list(state.served) == names


class TestRoundByRound:
    """Flower's own loop drives the hooks."""

    @pytest.mark.parametrize("fleet", [None, slow_links], ids=["real", "simulated"])
    def test_every_round_counts(self, fleet):
        nodes = Nodes(node_ids=range(1, 4))
        nodes.grid = RoundGrid(nodes.handle, node_ids=range(1, 4))
        strategy = STRATEGIES["async-fedavg"](half(), INPUTS, fleet=fleet, seed=1)
        result = Strategy.start(
            strategy, nodes.grid, record(mlp().state_dict()), num_rounds=3
        )
        assert list(result.arrays) == list(mlp().state_dict())
        assert set(result.train_metrics_clientapp) == {1, 2, 3}
        assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
        if fleet is None:
            assert nodes.brought == {1: 1, 2: 1, 3: 1}

    def test_other_frozen_tensors_are_a_new_version(self):
        nodes = Nodes(node_ids=range(1, 4))
        strategy = STRATEGIES["async-fedavg"](half(), INPUTS, seed=1)
        hashes = []
        for number, seed in ((1, 0), (2, 0), (3, 6)):
            arrays = record(mlp(seed).state_dict())
            messages = list(
                strategy.configure_train(number, arrays, ConfigRecord(), nodes.grid)
            )
            hashes.append({wire.read_frozen(m).sha256 for m in messages})
            replies = [nodes.handle(message) for message in messages]
            arrays, _ = strategy.aggregate_train(number, replies)
            frozen = mlp(seed).state_dict()["0.weight"]
            assert torch.equal(wire.from_record(arrays)["0.weight"], frozen)
        assert hashes[0] == hashes[1] != hashes[2]
        assert nodes.brought == {1: 2, 2: 2, 3: 2}


class TestCheckpoints:
    def run(self, folder, *, resume=None, seed=0, rounds=4, callbacks=(), **changes):
        net = half()
        net.load_state_dict(mlp(seed).state_dict())
        strategy = STRATEGIES["hetero-asyncdrop"](
            net,
            INPUTS,
            in_flight=3,
            fleet=slow_links,
            seed=1,
            fraction_evaluate=0.0,
            checkpointer=Checkpointer(folder, resume=resume, every=1, keep=99),
            callbacks=[*callbacks],
            **changes,
        )
        nodes = Nodes(node_ids=range(1, 6))
        arrays = record(net.state_dict())
        result = strategy.start(
            nodes.grid, arrays, num_rounds=rounds, evaluate_fn=lambda n, a: None
        )
        return weights(result.arrays)

    def test_a_run_resumes_with_the_same_result(self, tmp_path):
        expected = self.run(tmp_path / "run")
        for number in (1, 2, 3):
            copied = shutil.copytree(tmp_path / "run", tmp_path / f"copy-{number}")
            saved = sorted((copied / "checkpoints").iterdir())
            found = self.run(copied, resume=saved[number])
            assert found == expected

    def test_a_checkpoint_has_the_frozen_part_once(self, tmp_path):
        self.run(tmp_path)
        newest = max((tmp_path / "checkpoints").iterdir())
        tensors = load_file(newest / "state.safetensors")
        large = [name for name, tensor in tensors.items() if tensor.shape == (6, 4)]
        assert len(large) == 1
        assert mlp().state_dict()["0.weight"].equal(tensors[large[0]])

    def test_another_frozen_part_is_refused(self, tmp_path):
        self.run(tmp_path)
        with pytest.raises(CheckpointError, match=r"SHA-256 [0-9a-f]{12}, and those"):
            self.run(tmp_path, resume=tmp_path, seed=3)

    def test_so_is_another_choice_of_what_trains(self, tmp_path):
        self.run(tmp_path)
        with pytest.raises(CheckpointError, match=r"'2.(weight|bias)'"):
            self.run(tmp_path, resume=tmp_path, trainable=["2", "4"])


class TestBadArguments:
    def test_names_are_checked_when_the_strategy_is_built(self):
        with pytest.raises(ConfigError, match="trainable='head'"):
            STRATEGIES["async-fedavg"](half(), INPUTS, trainable="head")
        with pytest.raises(ConfigError, match="trainable=7"):
            STRATEGIES["async-fedavg"](trainable=7)

    def test_without_a_model_when_the_run_starts(self):
        strategy = STRATEGIES["async-fedavg"](trainable="head", fraction_evaluate=0.0)
        nodes = Nodes(node_ids=range(1, 4))
        with pytest.raises(ConfigError, match="trainable='head'"):
            strategy.start(nodes.grid, record(mlp().state_dict()))

    def test_without_a_model_names_suffice(self):
        nodes = Nodes(node_ids=range(1, 6))
        strategy = STRATEGIES["async-fedavg"](
            trainable="4", fraction_evaluate=0.0, fleet=slow_links
        )
        strategy.start(nodes.grid, record(mlp().state_dict()), num_rounds=1)
        assert all(set(c["arrays"]) == {"4.weight", "4.bias"} for _, c in nodes.got)

    def test_a_model_that_trains_nothing(self):
        with pytest.raises(ConfigError, match="none of 6 parameters trains"):
            STRATEGIES["async-fedavg"](mlp().requires_grad_(False), INPUTS)
