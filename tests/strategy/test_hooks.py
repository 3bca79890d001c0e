"""A hook that a subclass overrides is called, or refused by name; never ignored."""

import inspect
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from threading import Barrier

import numpy as np
import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.server import strategy as legacy
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from flwr_asyncdrop import (
    AsyncFedAvg,
    AsyncFedProx,
    Callback,
    Checkpointer,
    FedBuff,
    speed_levels,
)
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.strategy.legacy import LEGACY_HOOKS, PRIVATE_HOOKS
from tests.grids import HandlerGrid
from tests.runs import answer, plus_one, record
from tests.strategy.test_strategy import (  # noqa: F401
    ZEROS,
    RoundGrid,
    log,
    measuring,
    weights,
)

pytestmark = pytest.mark.usefixtures("no_settling")


def losing(message):
    """Train: add one, and report a loss."""
    state = {
        name: t + 1
        for name, t in message.content["arrays"].to_torch_state_dict().items()
    }
    return answer(message, state, loss=2.0)


def run(strategy, rounds=3, handle=losing, nodes=2, **settings):
    grid = HandlerGrid(measuring(handle), node_ids=range(1, nodes + 1))
    settings.setdefault("train_config", ConfigRecord({"lr": 1.0}))
    result = strategy.start(grid, record(ZEROS), num_rounds=rounds, **settings)
    return result, grid


def rates(grid):
    """Return the learning rate of every task, by the round in which it left."""
    configs = [
        m.content["config"] for m in grid.pushed if m.metadata.message_type == "train"
    ]
    return [(config["server-round"], config["lr"]) for config in configs]


def options(**changes):
    return {"in_flight": 2, "fleet": speed_levels, "fraction_evaluate": 0.0, **changes}


class Decayed(AsyncFedAvg):
    """Upstream's own example: the rate falls in a hook."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round > 1:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)


class Stops(Callback):
    """Ends a run after a round, when it has been saved, as a signal would."""

    def __init__(self, at=3):
        self.at = at

    def on_pause(self, state):
        if state.updates == 2 * self.at:
            raise KeyboardInterrupt


class TestConfigureTrain:
    def test_it_sets_the_config_of_every_round(self):
        _, grid = run(Decayed(**options()))
        found = rates(grid)
        assert found == [(number, 0.5 ** (number - 1)) for number, _ in found]
        assert {number for number, _ in found} == {1, 2, 3}

    def test_once_a_round_with_the_model_of_the_moment(self):
        calls = []

        class Looking(AsyncFedAvg):
            def configure_train(self, server_round, arrays, config, grid):
                calls.append(
                    (
                        server_round,
                        weights(arrays)["w"][0],
                        len(list(grid.get_node_ids())),
                    )
                )
                return super().configure_train(server_round, arrays, config, grid)

        run(Looking(**options(in_flight=1)), rounds=3)
        # W moves half-way to W + 1 with every update.
        assert calls == [(1, 0.0, 2), (2, 0.5, 2), (3, 1.0, 2)]

    def test_another_record_may_be_passed_on(self):
        class Replaced(AsyncFedAvg):
            def configure_train(self, server_round, arrays, config, grid):
                mine = ConfigRecord({"lr": 0.1 * server_round})
                return super().configure_train(server_round, arrays, mine, grid)

        _, grid = run(Replaced(**options()))
        assert all(rate == pytest.approx(0.1 * number) for number, rate in rates(grid))

    def test_a_mixin(self):
        class Halves:
            def configure_train(self, server_round, arrays, config, grid):
                config["lr"] = 0.5
                return super().configure_train(server_round, arrays, config, grid)

        class Mine(Halves, FedBuff):
            pass

        _, grid = run(Mine(**options()))
        assert {rate for _, rate in rates(grid)} == {0.5}

    @pytest.mark.parametrize("how", ["method", "function", "partial"])
    def test_one_that_is_set_on_the_object(self, how):
        strategy = AsyncFedAvg(**options())
        before = strategy.configure_train

        def halve(self, server_round, arrays, config, grid):
            config["lr"] = 0.5
            return before(server_round, arrays, config, grid)

        strategy.configure_train = {
            "method": types.MethodType(halve, strategy),
            "function": lambda *args: halve(strategy, *args),
            "partial": partial(halve, strategy),
        }[how]
        _, grid = run(strategy)
        assert {rate for _, rate in rates(grid)} == {0.5}

    @pytest.mark.parametrize(
        ("returned", "says"),
        [
            (lambda own, given: [], "returns messages of its own"),
            (lambda own, given: None, "returns messages of its own"),
            (lambda own, given: list(own()), "looks into the messages of a round"),
            (lambda own, given: own()[0], "looks into the messages of a round"),
            (
                lambda own, given: own(ArrayRecord(dict(given))),
                "passes other arrays on",
            ),
            (lambda own, given: given.popitem() and own(), "passes other arrays on"),
            (lambda own, given: own(config=None), "passes None on as the config"),
        ],
    )
    def test_what_cannot_be_followed_is_refused_before_any_task(self, returned, says):
        class Mine(AsyncFedAvg):
            def configure_train(self, server_round, arrays, config, grid):
                def own(passed=arrays, config=config):
                    return super(Mine, self).configure_train(
                        server_round, passed, config, grid
                    )

                return returned(own, arrays)

        grid = HandlerGrid(plus_one)
        with pytest.raises(
            ConfigError, match=f"configure_train of Mine {says}"
        ) as caught:
            Mine(**options()).start(grid, record(ZEROS))
        assert not grid.pushed
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ([1], r"config of Mine=\[1\] must be a ConfigRecord"),
            ({"a": None}, r"config of Mine\['a'\]=None cannot be sent"),
            ({"a": [0, 2**63]}, r"config of Mine\['a'\]=.* integers have 64 bits"),
            ({"a": -(2**63) - 1}, r"config of Mine\['a'\]=-9.* integers have 64 bits"),
        ],
    )
    def test_a_config_that_cannot_be_sent_is_refused(self, config, says):
        class Mine(AsyncFedAvg):
            def configure_train(self, server_round, arrays, _, grid):
                return super().configure_train(server_round, arrays, config, grid)

        class Evaluates(AsyncFedAvg):
            def configure_evaluate(self, server_round, arrays, _, grid):
                return super().configure_evaluate(server_round, arrays, config, grid)

        Evaluates.__name__ = "Mine"
        for kind in (Mine, Evaluates):
            with pytest.raises(ConfigError, match=says):
                run(kind(**options(fraction_evaluate=1.0)))

    def test_a_hook_of_flowers_own_fedavg_is_refused(self):
        class Mine(AsyncFedAvg):
            configure_train = FedAvg.configure_train

        strategy = Mine(**options())
        strategy._construct_messages = FedAvg._construct_messages
        with pytest.raises(ConfigError, match="'_construct_messages' of FedAvg: such"):
            run(strategy)

    def test_its_configs_are_saved_in_checkpoints(self, tmp_path):
        def strategy(*callbacks, **saving):
            checkpointer = Checkpointer(tmp_path, every=1, **saving)
            return Decayed(**options(callbacks=callbacks, checkpointer=checkpointer))

        _, whole = run(Decayed(**options()), rounds=5)
        with pytest.raises(KeyboardInterrupt):
            run(strategy(Stops()), rounds=5)
        config = ConfigRecord({"lr": 1.0})
        _, grid = run(strategy(resume=tmp_path), rounds=5, train_config=config)
        # What was out is sent again, with the rate that it had.
        assert sorted(rates(grid))[-4:] == sorted(rates(whole))[-4:]
        assert all(rate == 0.5 ** (number - 1) for number, rate in rates(grid))
        assert config["lr"] == 0.5**4


class TestResumedConfig:
    def start(self, folder, config, *callbacks, strategy=AsyncFedAvg, **saving):
        checkpointer = Checkpointer(folder, every=1, **saving)
        settings = options(callbacks=callbacks, checkpointer=checkpointer)
        return run(strategy(**settings), rounds=5, train_config=config)

    def stop(self, folder, config, **settings):
        with pytest.raises(KeyboardInterrupt):
            self.start(folder, config, Stops(), **settings)

    @pytest.mark.parametrize(
        ("entries", "says"),
        [
            ({"lr": 0.3}, r"lr 1\.0, now 0\.3"),
            ({"lr": 1.0, "epochs": 3}, "epochs absent, now 3"),
            ({}, r"lr 1\.0, now absent"),
        ],
    )
    @pytest.mark.parametrize("strategy", [AsyncFedAvg, Decayed])
    def test_another_one_is_refused_and_stays_as_it_is(
        self, tmp_path, entries, says, strategy
    ):
        self.stop(tmp_path, ConfigRecord({"lr": 1.0}), strategy=strategy)
        config = ConfigRecord(entries)
        with pytest.raises(CheckpointError, match=says):
            self.start(tmp_path, config, strategy=strategy, resume=tmp_path)
        assert dict(config) == entries

    def test_the_same_record_that_a_hook_has_changed(self, tmp_path):
        config = ConfigRecord({"lr": 1.0})
        self.stop(tmp_path, config, strategy=Decayed)
        assert config["lr"] == 0.5**3
        self.start(tmp_path, config, strategy=Decayed, resume=tmp_path)
        assert config["lr"] == 0.5**4

    def test_a_key_that_a_hook_has_taken_away_does_not_come_back(self, tmp_path):
        class WarmUp(AsyncFedAvg):
            def configure_train(self, server_round, arrays, config, grid):
                if server_round == 2:
                    del config["warm-up"]
                return super().configure_train(server_round, arrays, config, grid)

        entries = {"lr": 1.0, "warm-up": 3}
        self.stop(tmp_path, ConfigRecord(entries), strategy=WarmUp)
        config = ConfigRecord(entries)
        _, grid = self.start(tmp_path, config, strategy=WarmUp, resume=tmp_path)
        assert dict(config) == {"lr": 1.0}
        assert grid.pushed
        for message in grid.pushed:
            assert "warm-up" not in message.content["config"]

    def test_again_after_it_was_resumed(self, tmp_path):
        self.stop(tmp_path, ConfigRecord({"lr": 1.0}), strategy=Decayed)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                self.start(
                    tmp_path,
                    ConfigRecord({"lr": 1.0}),
                    Stops(4),
                    strategy=Decayed,
                    resume=tmp_path,
                )

    def test_bytes_lists_and_nan(self, tmp_path):
        entries = {"lr": 1.0, "key": b"\xff", "keys": [b"a", b""], "x": [1, 2]}
        config = {**entries, "nan": float("nan")}
        self.stop(tmp_path, ConfigRecord(config))
        config = {**entries, "nan": float("nan")}
        _, grid = self.start(tmp_path, ConfigRecord(config), resume=tmp_path)
        for message in grid.pushed:
            found = message.content["config"]
            assert {key: found[key] for key in entries} == entries

    def test_numbers_of_numpy(self, tmp_path):
        entries = {"lr": np.float64(1.0), "x": [np.float64(0.5)]}
        self.stop(tmp_path, ConfigRecord(entries))
        self.start(tmp_path, ConfigRecord(entries), resume=tmp_path)


class TestTrainConfig:
    def test_a_function_of_the_round(self):
        _, grid = run(
            AsyncFedAvg(**options()),
            train_config=lambda number: ConfigRecord({"lr": 1.0 / number}),
        )
        assert {(number, 1.0 / number) for number in (1, 2, 3)} == set(rates(grid))

    def test_a_record_that_somebody_changes_on_the_way(self):
        config = ConfigRecord({"lr": 1.0})

        class Halves(Callback):
            def on_update(self, state, merged):
                config["lr"] = 0.5

        _, grid = run(AsyncFedAvg(**options(callbacks=[Halves()])), train_config=config)
        assert all(rate == (1.0 if n == 1 else 0.5) for n, rate in rates(grid))

    def test_for_evaluation_too(self):
        _, grid = run(
            AsyncFedAvg(**options(fraction_evaluate=1.0)),
            evaluate_config=lambda number: ConfigRecord({"batch": number}),
        )
        found = [
            m.content["config"]
            for m in grid.pushed
            if m.metadata.message_type == "evaluate"
        ]
        assert [c["batch"] for c in found] == [c["server-round"] for c in found]
        assert len(found) == 6

    @pytest.mark.parametrize(
        ("value", "sent"),
        [
            (np.float32(0.5), 0.5),
            (np.int64(3), 3),
            (torch.tensor(0.5), 0.5),
            (np.bool_(True), True),
            ([np.int64(3), np.int64(4)], [3, 4]),
        ],
        ids=repr,
    )
    def test_numbers_of_numpy_and_pytorch_in_a_dict(self, value, sent):
        _, grid = run(AsyncFedAvg(**options()), train_config={"lr": 1.0, "x": value})
        assert all(message.content["config"]["x"] == sent for message in grid.pushed)

    @pytest.mark.parametrize(
        "value", [None, {"a": 1}, np.zeros((2, 2))], ids=["none", "dict", "array"]
    )
    def test_what_cannot_be_sent_is_named(self, value):
        with pytest.raises(
            ConfigError, match=r"^train_config\['x'\]=.* cannot be sent"
        ):
            run(AsyncFedAvg(**options()), train_config={"x": value})

    def test_a_value_that_the_objective_would_replace_is_refused(self):
        def start(mu):
            config = {"proximal-mu": mu}
            return run(AsyncFedProx(proximal_mu=0.5), train_config=config)

        with pytest.raises(ConfigError, match=r"^train_config\['proximal-mu'\]=7.0 w"):
            start(7.0)
        assert start(0.5)[1].pushed[0].content["config"]["proximal-mu"] == 0.5

    @pytest.mark.parametrize("kind", [ConfigRecord, dict])
    def test_that_of_evaluations_is_one_record_in_all_rounds(self, kind):
        class Mine(AsyncFedAvg):
            def configure_evaluate(self, server_round, arrays, config, grid):
                config["count"] += 1
                return super().configure_evaluate(server_round, arrays, config, grid)

        strategy = Mine(**options(fraction_evaluate=1.0))
        _, grid = run(strategy, evaluate_config=kind({"count": 0}))
        sent = [m for m in grid.pushed if m.metadata.message_type == "evaluate"]
        counts = [message.content["config"]["count"] for message in sent]
        assert counts == [1, 1, 2, 2, 3, 3]

    def test_that_of_evaluations_is_refused_before_any_task(self):
        grid = HandlerGrid(plus_one)
        with pytest.raises(ConfigError, match="evaluate_config=3 must be a ConfigRec"):
            AsyncFedAvg(**options()).start(grid, record(ZEROS), evaluate_config=3)
        assert not grid.pushed

    @pytest.mark.parametrize("wrong", [3, lambda number: {"lr": 1.0}])
    def test_what_is_none_is_refused_before_any_task(self, wrong):
        grid = HandlerGrid(plus_one)
        with pytest.raises(ConfigError, match="ConfigRecord"):
            AsyncFedAvg(**options()).start(grid, record(ZEROS), train_config=wrong)
        assert not grid.pushed


class TestAggregateTrain:
    def test_it_gets_the_replies_and_may_change_the_metrics(self, log):  # noqa: F811
        seen = []

        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                arrays, metrics = super().aggregate_train(server_round, replies)
                seen.append((server_round, len(replies), weights(arrays)["w"][0]))
                metrics["replies"] = len(replies)
                return arrays, metrics

        result, _ = run(Mine(**options(in_flight=1)))
        assert seen == [(1, 1, 0.5), (2, 1, 1.0), (3, 1, 1.5)]
        by_round = result.train_metrics_clientapp
        expected = {"loss": 2.0, "replies": 1}
        assert [dict(by_round[number]) for number in (1, 2, 3)] == [expected] * 3
        assert "'replies': 1" in log.text

    def test_metrics_that_it_changes_in_the_replies_are_aggregated(self):
        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                for reply in replies:
                    reply.content["metrics"]["loss"] = 7.0
                return super().aggregate_train(server_round, replies)

        result, _ = run(Mine(**options()))
        assert result.train_metrics_clientapp[3]["loss"] == 7.0

    def test_the_function_for_metrics_is_called_once_a_round(self):
        """It may keep what it has seen, as a moving average does."""
        calls = []

        def count(records, weighted_by_key):
            calls.append(len(records))
            return MetricRecord({"calls": len(calls)})

        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                return super().aggregate_train(server_round, replies)

        result, _ = run(Mine(**options(train_metrics_aggr_fn=count)))
        assert calls == [2, 2, 2]
        assert result.train_metrics_clientapp[3]["calls"] == 3

    def test_none_for_the_metrics(self):
        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                return super().aggregate_train(server_round, replies)[0], None

        assert run(Mine(**options()))[0].train_metrics_clientapp == {}

    def test_other_metrics_are_refused(self):
        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                return super().aggregate_train(server_round, replies)[0], 0.5

        says = r"aggregate_train\(1, ...\) of Mine returned 0.5: return a MetricRecord"
        with pytest.raises(ConfigError, match=says):
            run(Mine(**options()))

    @pytest.mark.parametrize(
        ("aggregate", "says"),
        [
            (lambda own, replies: (None, None), "returns other arrays than super"),
            (lambda own, replies: (record(ZEROS), None), "returns other arrays"),
            (lambda own, replies: own(replies[:1]), "passes other replies on"),
            (lambda own, replies: own([]), "passes other replies on"),
            (
                lambda own, replies: own(
                    [replies[0].content.pop("metrics") and replies[0], replies[1]]
                ),
                "passes other replies on",
            ),
            (
                lambda own, replies: own(
                    [
                        reply
                        for reply in replies
                        if reply.content["arrays"].update(record({"w": ZEROS["w"]}))
                        is None
                    ]
                ),
                "passes other replies on",
            ),
            (
                lambda own, replies: own(
                    [
                        reply
                        for reply in replies
                        if reply.content["metrics"].update({"num-examples": 5}) is None
                    ]
                ),
                "passes other replies on",
            ),
            (
                lambda own, replies: (lambda found: (found[0].popitem(), found)[1])(
                    own(replies)
                ),
                "returns other arrays than super",
            ),
        ],
    )
    def test_what_is_merged_already_cannot_be_changed(self, aggregate, says):
        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                own = super().aggregate_train
                return aggregate(lambda passed: own(server_round, passed), replies)

        with pytest.raises(
            ConfigError, match=f"aggregate_train of Mine {says}"
        ) as caught:
            run(Mine(**options()))
        assert "\n" not in str(caught.value)

    def test_it_may_check_the_replies_as_fedavgs_children_do(self):
        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                valid, failed = self._check_and_log_replies(replies, is_train=True)
                assert not failed
                return super().aggregate_train(server_round, valid)

        assert len(run(Mine(**options()))[0].train_metrics_clientapp) == 3

    def test_it_does_not_change_the_run(self):
        class Mine(AsyncFedAvg):
            def aggregate_train(self, server_round, replies):
                return super().aggregate_train(server_round, replies)

        (one, first), (other, second) = (
            run(Mine(**options())),
            run(AsyncFedAvg(**options())),
        )
        assert weights(one.arrays) == weights(other.arrays)
        assert one.train_metrics_clientapp == other.train_metrics_clientapp
        assert len(first.pushed) == len(second.pushed)


class TestEvaluation:
    def test_both_hooks_are_called_after_every_round(self):
        best = {}

        class Mine(AsyncFedAvg):
            def configure_evaluate(self, server_round, arrays, config, grid):
                config["mine"] = server_round
                best[server_round] = weights(arrays)["w"][0]
                return list(
                    super().configure_evaluate(server_round, arrays, config, grid)
                )[:1]

            def aggregate_evaluate(self, server_round, replies):
                metrics = super().aggregate_evaluate(server_round, replies)
                metrics["replies"] = len(list(replies))
                return metrics

        result, grid = run(Mine(**options(fraction_evaluate=1.0, in_flight=1)))
        assert best == {1: 0.5, 2: 1.0, 3: 1.5}
        found = result.evaluate_metrics_clientapp
        assert {n: m["replies"] for n, m in found.items()} == {1: 1, 2: 1, 3: 1}
        sent = [m for m in grid.pushed if m.metadata.message_type == "evaluate"]
        assert [m.content["config"]["mine"] for m in sent] == [1, 2, 3]

    def test_other_metrics_are_refused(self):
        class Mine(AsyncFedAvg):
            def aggregate_evaluate(self, server_round, replies):
                return 0.5

        says = r"aggregate_evaluate\(1, ...\) returned 0.5: return a MetricRecord"
        with pytest.raises(ConfigError, match=says):
            run(Mine(**options(fraction_evaluate=1.0)))

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda messages: None, "returns None in place of messages: return"),
            (lambda messages: 3, "returns an int in place of messages"),
            (lambda messages: {1: "two"}, "returns an int in place of messages"),
            (lambda messages: [*messages, "x"], "returns a str in place of messages"),
            (lambda messages: messages[0], "returns a Message in place of messages"),
            (lambda messages: messages * 2, "returns a message twice: make another"),
        ],
    )
    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_what_is_no_messages_is_refused(self, change, says, share):
        class Mine(AsyncFedAvg):
            def configure_evaluate(self, server_round, arrays, config, grid):
                record = RecordDict({"arrays": arrays, "config": config})
                return change([Message(record, 1, "evaluate")])

        with pytest.raises(ConfigError, match="configure_evaluate of Mine ") as caught:
            run(Mine(**options(fraction_evaluate=share)))
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_no_arrays_are_refused(self):
        class Mine(AsyncFedAvg):
            def configure_evaluate(self, server_round, arrays, config, grid):
                return super().configure_evaluate(server_round, None, config, grid)

        with pytest.raises(ConfigError, match="passes None on as the arrays"):
            run(Mine(**options(fraction_evaluate=1.0)))

    def test_without_a_number_of_examples_the_fix_is_not_another_function(self, log):  # noqa: F811
        def handle(message):
            if message.metadata.message_type == "train":
                return losing(message)
            return Message(RecordDict(), reply_to=message)

        grid = HandlerGrid(handle, node_ids=(1, 2))
        strategy = AsyncFedAvg(**options(fraction_evaluate=1.0))
        strategy.start(grid, record(ZEROS), num_rounds=1)
        assert "has no 'num-examples'" in log.text
        assert "none of 2 clients has evaluated round 1" in log.text
        assert "@app.evaluate()" not in log.text

    @pytest.mark.parametrize("hook", ["configure_evaluate", "aggregate_evaluate"])
    def test_without_a_fraction_they_are_called_as_flower_calls_them(self, hook):
        calls = []
        strategy = AsyncFedAvg(**options())

        def noted(*args, **kwargs):
            calls.append(args[0])
            return original(*args, **kwargs)

        original = getattr(strategy, hook)
        setattr(strategy, hook, noted)
        _, grid = run(strategy)
        assert calls == [1, 2, 3]
        assert not [m for m in grid.pushed if m.metadata.message_type == "evaluate"]

    @pytest.mark.parametrize("fleet", [None, speed_levels])
    def test_one_as_flowers_own_with_what_fedavg_has_for_it(self, fleet, log):  # noqa: F811
        class Mine(AsyncFedAvg):
            configure_evaluate = FedAvg.configure_evaluate
            aggregate_evaluate = FedAvg.aggregate_evaluate

        def handle(message):
            if message.metadata.dst_node_id == 2:
                return measuring(losing)(message)
            return Message(Error(1, "no data here"), reply_to=message)

        settings = options(fraction_evaluate=0.5, fleet=fleet)
        grid = HandlerGrid(
            lambda m: handle(m) if m.metadata.message_type == "evaluate" else losing(m),
            node_ids=[1, 2],
        )
        result = Mine(**settings).start(grid, record(ZEROS), num_rounds=2)
        found = result.evaluate_metrics_clientapp
        assert {number: dict(m) for number, m in found.items()} == {
            1: {"loss": 2.0},
            2: {"loss": 2.0},
        }
        assert "no evaluation from node 1: the client failed" in log.text


class TestStart:
    def test_several_threads_may_start_one_strategy(self):
        """The runs had each other's hooks, and clients of each other's evaluations."""
        seen = []

        class Mine(Decayed):
            def aggregate_train(self, server_round, replies):
                seen.append(server_round)
                return super().aggregate_train(server_round, replies)

        def start(strategy, nodes, together=nullcontext):
            meets = iter([together])

            def handle(message):
                next(meets, nullcontext)()
                return losing(message)

            result, grid = run(strategy, nodes=nodes, handle=handle)
            kinds = Counter(m.metadata.message_type for m in grid.pushed)
            return rates(grid), weights(result.arrays), kinds

        apart = [start(Mine(**options(fraction_evaluate=1.0)), n) for n in (2, 5)]
        seen.clear()
        strategy, both = Mine(**options(fraction_evaluate=1.0)), Barrier(2, timeout=60)
        with ThreadPoolExecutor(2) as threads:
            found = threads.map(lambda n: start(strategy, n, both.wait), (2, 5))
            assert [*found] == apart
        assert sorted(seen) == [1, 1, 2, 2, 3, 3]

    def test_one_that_is_started_again_in_its_own_run(self):
        """The outer run went on as if its rounds were driven from outside."""
        seen = []

        class Mine(Decayed):
            def aggregate_train(self, server_round, replies):
                seen.append(server_round)
                return super().aggregate_train(server_round, replies)

        class Again(Callback):
            def on_round(self, state, number):
                if len(seen) == 1:
                    run(strategy, rounds=2)

        strategy = Mine(**options(callbacks=[Again()]))
        _, grid = run(strategy)
        assert seen == [1, 1, 2, 2, 3]
        assert {number for number, _ in rates(grid)} == {1, 2, 3}

    def test_one_that_calls_super(self):
        class Mine(AsyncFedAvg):
            def start(self, *args, **kwargs):
                result = super().start(*args, **kwargs)
                result.note = "mine"
                return result

            def summary(self):
                self.seen = True

        strategy = Mine(**options())
        assert run(strategy)[0].note == "mine"
        assert strategy.seen

    def test_a_copied_loop_is_told_that_it_is_synchronous(self, log):  # noqa: F811
        class Mine(AsyncFedAvg):
            start = Strategy.start

        grid = RoundGrid(measuring(plus_one), node_ids=[1, 2])
        Mine(in_flight=2).start(grid, record(ZEROS), num_rounds=2)
        assert log.text.count("Mine is driven round by round") == 1

    @pytest.mark.parametrize(
        ("hook", "aggregate"),
        [
            ("aggregate_train", AsyncFedAvg.aggregate_train),
            ("configure_evaluate", FedAvg.aggregate_train),
        ],
    )
    def test_a_copied_loop_whose_configure_train_makes_messages(self, hook, aggregate):
        class Mine(AsyncFedAvg):
            start = Strategy.start
            configure_train = FedAvg.configure_train
            aggregate_train = aggregate

        grid = RoundGrid(measuring(plus_one), node_ids=[1, 2])
        says = f"{hook} comes after configure_train, and that of Mine does not call sup"
        with pytest.raises(ConfigError, match=says):
            Mine().start(grid, record(ZEROS))

    def test_after_a_run_that_failed_the_hooks_are_flowers_again(self):
        class Mine(Decayed):
            def aggregate_train(self, server_round, replies):
                raise ZeroDivisionError

        strategy = Mine(**options())
        with pytest.raises(ZeroDivisionError):
            run(strategy)
        config = ConfigRecord({"lr": 1.0})
        messages = strategy.configure_train(
            1, record(ZEROS), config, HandlerGrid(plus_one)
        )
        assert len(list(messages)) == 2


class TestHooksOfOthers:
    @pytest.mark.parametrize("name", [*LEGACY_HOOKS, *PRIVATE_HOOKS])
    def test_a_subclass_that_has_them_is_refused_at_the_start(self, name):
        mine = type("Mine", (FedBuff,), {name: lambda self, *args, **kwargs: None})
        grid = HandlerGrid(plus_one)
        with pytest.raises(ConfigError, match=f"Mine has {name!r} of "):
            mine(**options()).start(grid, record(ZEROS))
        assert not grid.pushed

    def test_all_of_them_are_in_one_error(self):
        class Mine(FedBuff):
            def configure_fit(self): ...
            def aggregate_fit(self): ...
            def _compute_deltat_and_mt(self): ...

        with pytest.raises(ConfigError) as caught:
            Mine(**options()).start(HandlerGrid(plus_one), record(ZEROS))
        assert str(caught.value).startswith(
            "Mine has 'configure_fit', 'aggregate_fit' of Flower's legacy strategies "
            "and '_compute_deltat_and_mt' of FedAvg: such hooks"
        )

    @pytest.mark.parametrize(
        "kind", [Strategy, FedAvg, FedAdam, legacy.Strategy, legacy.FedAvg]
    )
    def test_no_method_of_flowers_is_unknown(self, kind):
        known = {"configure_train", "aggregate_train", "summary", "start"}
        known |= {"configure_evaluate", "aggregate_evaluate"}
        known |= {*LEGACY_HOOKS, *PRIVATE_HOOKS}
        methods = {n for n, m in inspect.getmembers(kind, inspect.isfunction)}
        assert {n for n in methods if not n.startswith("__")} <= known
