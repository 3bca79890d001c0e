"""A run that goes on from any checkpoint is the run that was never interrupted."""

import logging
import os
import signal
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import MappingProxyType

import pytest
import torch

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Buffered, Mixing
from flwr_asyncdrop.algorithms.registry import ALGORITHMS
from flwr_asyncdrop.checkpoint import Checkpointer, newest
from flwr_asyncdrop.checkpoint.files import all_checkpoints
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError, RunError
from flwr_asyncdrop.fleet.codecs import CodecChoice
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.selection import Selection, Uniform
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.objectives import StandardObjective
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.server.server_evaluator import ServerEvaluator
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import from_plain
from flwr_asyncdrop.strategy import async_strategy, runs
from flwr_asyncdrop.submodel import merge_
from flwr_asyncdrop.wire.codec import PRESETS
from tests.checkpoint.small_runs import FLEET, NETS, client, copy_of, lines, run
from tests.grids import HandlerGrid
from tests.runs import failing, plus_one, record
from tests.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("no_settling")


class InTurn(Selection):
    """One idle device after the other, one further on after each slow update."""

    def __init__(self):
        self.turn = 0

    def choose(self, idle, ranks, busy_ranks, generator):
        self.turn += 1
        return int(idle[self.turn % len(idle)])

    def learn(self, update):
        self.turn += update.seconds > 1

    def state_dict(self):
        return {"turn": self.turn}

    def load_state_dict(self, state):
        self.turn = state["turn"]


class ByTime(Buffered):
    """A step every so many seconds, for which devices wait."""

    def __init__(self, seconds):
        super().__init__(1000)
        self.waits_for, self.updates_per_version = 2, 1
        self.seconds = self.steps_at = seconds

    def flush(self, state):
        self.steps_at += self.seconds
        return super().flush(state)

    def state_dict(self):
        return {**super().state_dict(), "steps_at": self.steps_at}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.steps_at = state["steps_at"]


class SendsAlong(Mixing):
    """Sends a record along that it changes in place, and the model itself."""

    def __init__(self):
        super().__init__(0.5)
        self.control = {}

    def extra(self, state):
        if not self.control:
            self.control = {name: t.clone() for name, t in state.items()}
        return {"control": self.control, "model": state}

    def merge(self, state, update):
        merge_(self.control, update.extra["control"], update.indices, 0.25)
        return super().merge(state, update)

    def state_dict(self):
        return {"control": {name: t.clone() for name, t in self.control.items()}}

    def load_state_dict(self, state):
        self.control = dict(state["control"])


def client_with_records(message):
    """Train by what came beside the model, and return it, changed."""
    reply = client(message)
    if reply.content.array_records:
        beside = wire.from_record(message.content["control"])
        model = wire.from_record(message.content["model"])
        arrays = wire.from_record(reply.content["arrays"])
        for name, tensor in arrays.items():
            tensor += 0.1 * beside[name] + 0.01 * model[name]
        reply.content["arrays"] = wire.to_record(arrays)
        reply.content["control"] = wire.to_record(
            {name: tensor + 1 for name, tensor in beside.items()}
        )
        reply.content["model"] = message.content["model"]
    return reply


class Bits(CodecChoice):
    """A choice of somebody's own, which is no dataclass."""

    typical = PRESETS["q8"]

    def __init__(self, name):
        self.name = name

    def choose(self, link, sizes):
        return PRESETS["none"]


def checkpoints(folder):
    return all_checkpoints(folder / "checkpoints")[::-1]


def state_of(checkpoint):
    return from_plain(RunState, newest(checkpoint).parts["run"]["state"])


def stopping_at(number, signum=signal.SIGINT):
    """Return a client during whose work a signal comes, once."""
    tasks = count(1)

    def handle(message):
        if next(tasks) == number:
            signal.raise_signal(signum)
        return client(message)

    return handle


@pytest.fixture
def log(caplog, monkeypatch):
    """What is logged; Flower's logger does not hand its records on."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO):
        yield caplog


class TestVirtualClock:
    @pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
    def test_from_every_checkpoint_of_every_algorithm(self, algorithm, tmp_path):
        whole = run(tmp_path / "whole", algorithm)
        saved = checkpoints(tmp_path / "whole")
        assert len(saved) == 4
        kinds = {line.get("kind") for line in whole["history"]}
        assert "dropout" in kinds
        for number, checkpoint in enumerate(saved):
            folder = copy_of(tmp_path / "whole", str(number))
            resume = folder / checkpoint.relative_to(tmp_path / "whole")
            assert run(folder, algorithm, resume=resume) == whole

    def test_with_a_history_that_leaves_updates_out(self, tmp_path):
        whole = run(tmp_path / "whole", "hetero-asyncdrop", history_every=5)
        assert any(line["event"] == "left-out" for line in whole["history"])
        for number, checkpoint in enumerate(checkpoints(tmp_path / "whole")):
            folder = copy_of(tmp_path / "whole", str(number))
            resume = folder / checkpoint.relative_to(tmp_path / "whole")
            settings = {"resume": resume, "history_every": 5}
            assert run(folder, "hetero-asyncdrop", **settings) == whole

    def test_with_energy(self, tmp_path):
        settings = {
            "fleet": partial(FLEET, watts=1.7, joules_per_byte=0.3e-3),
            "history_every": 5,
        }
        whole = run(tmp_path / "whole", "hetero-asyncdrop", **settings)
        uncounted = run(tmp_path / "uncounted", "hetero-asyncdrop", history_every=5)
        joules = [line.get("joules", 0.0) for line in whole["history"]]
        assert joules[-1] == max(joules) > 0
        assert "joules" not in {key for line in uncounted["history"] for key in line}
        for number, checkpoint in enumerate(checkpoints(tmp_path / "whole")):
            folder = copy_of(tmp_path / "whole", str(number))
            resume = folder / checkpoint.relative_to(tmp_path / "whole")
            again = run(folder, "hetero-asyncdrop", resume=resume, **settings)
            assert again == whole
        folder, resume = tmp_path / "stopped", None
        for _ in range(3):
            stopped = {**settings, "resume": resume, "handler": stopping_at(7)}
            with pytest.raises(KeyboardInterrupt):
                run(folder, "hetero-asyncdrop", **stopped)
            resume = folder
        assert run(folder, "hetero-asyncdrop", resume=folder, **settings) == whole

    def test_with_a_schedule_in_seconds(self, tmp_path):
        schedule = StepDecay((1.5, 3.0), 0.5, unit="seconds")
        whole = run(tmp_path / "whole", "hetero-asyncdrop", schedule=schedule)
        saved = checkpoints(tmp_path / "whole")
        factors = [{o.lr_factor for o in state_of(path).orders} for path in saved]
        assert set().union(*factors) == {1.0, 0.5, 0.25}
        for number, checkpoint in enumerate(saved):
            folder = copy_of(tmp_path / "whole", str(number))
            resume = folder / checkpoint.relative_to(tmp_path / "whole")
            settings = {"resume": resume, "schedule": schedule}
            assert run(folder, "hetero-asyncdrop", **settings) == whole

    @pytest.mark.parametrize("mode", ["sliced", "masked"])
    @pytest.mark.parametrize("late", ["merge", "drop"])
    def test_with_late_replies_and_masked_models(self, mode, late, tmp_path):
        changes = {"mode": mode, "late": late}
        whole = run(tmp_path / "whole", "hetero-asyncdrop", **changes)
        saved = checkpoints(tmp_path / "whole")
        states = [state_of(path) for path in saved]
        assert any(state.late for state in states)
        # The last one first: going on from one forgets those after it.
        for checkpoint in saved[:0:-1]:
            again = run(
                tmp_path / "whole", "hetero-asyncdrop", resume=checkpoint, **changes
            )
            assert again == whole

    @pytest.mark.parametrize("algorithm", ["fedbuff", "asyncdrop-plus", "fedavg"])
    def test_with_the_servers_momentum(self, algorithm, tmp_path):
        momentum = {"server_momentum": 0.5}
        whole = run(tmp_path, algorithm, **momentum)
        assert whole != run(tmp_path / "without", algorithm)
        resume = checkpoints(tmp_path)[2]
        assert run(tmp_path, algorithm, resume=resume, **momentum) == whole

    def test_with_a_selection_that_counts(self, tmp_path):
        turns = {"selection": InTurn()}
        whole = run(tmp_path / "whole", "asyncdrop", **turns)
        assert run(tmp_path / "again", "asyncdrop", **turns) == whole
        assert run(tmp_path / "other", "asyncdrop") != whole
        folder, resume = tmp_path / "stopped", None
        for _ in range(3):
            stopped = {**turns, "resume": resume, "handler": stopping_at(6)}
            with pytest.raises(KeyboardInterrupt):
                run(folder, "asyncdrop", **stopped)
            resume = folder
        assert run(folder, "asyncdrop", resume=folder, **turns) == whole

    @pytest.mark.parametrize("algorithm", ["async-fedavg", "asyncdrop"])
    def test_with_records_beside_the_model_that_change_in_place(
        self, algorithm, tmp_path
    ):
        settings = {"aggregator": SendsAlong(), "handler": client_with_records}
        whole = run(tmp_path / "whole", algorithm, **settings)
        for number, checkpoint in enumerate(checkpoints(tmp_path / "whole")):
            folder = copy_of(tmp_path / "whole", str(number))
            resume = folder / checkpoint.relative_to(tmp_path / "whole")
            assert run(folder, algorithm, resume=resume, **settings) == whole

    @pytest.mark.parametrize("clip_norm", [0.0, 1.0])
    def test_with_steps_by_the_time(self, clip_norm, tmp_path):
        settings = {"aggregator": ByTime(0.9), "clip_norm": clip_norm}
        whole = run(tmp_path / "whole", "hetero-asyncdrop", **settings)
        for number, checkpoint in enumerate(checkpoints(tmp_path / "whole")):
            folder = copy_of(tmp_path / "whole", str(number))
            resume = folder / checkpoint.relative_to(tmp_path / "whole")
            again = run(folder, "hetero-asyncdrop", resume=resume, **settings)
            assert again == whole

    @pytest.mark.parametrize("algorithm", ["asyncdrop-plus", "fedbuff-wait"])
    def test_stopped_again_and_again_in_the_middle_of_rounds(self, algorithm, tmp_path):
        whole = run(tmp_path / "whole", algorithm)
        folder, resume = tmp_path / "stopped", None
        for _ in range(6):
            with pytest.raises(KeyboardInterrupt):
                run(folder, algorithm, resume=resume, handler=stopping_at(6))
            assert lines(folder)[-1]["event"] != "end"
            resume = folder
        assert run(folder, algorithm, resume=folder) == whole

    def test_stopped_while_it_evaluates_what_it_has_when_its_time_is_up(self, tmp_path):
        def handle(message):
            if message.metadata.message_type == "evaluate" and next(asked) == 0:
                signal.raise_signal(signal.SIGINT)
            return client(message)

        changes, asked = {"max_seconds": 2.05}, count()
        whole = run(tmp_path / "whole", "asyncdrop", **changes)
        assert whole["history"][-1]["updates"] == 3  # of 4 in a round
        folder = tmp_path / "stopped"
        with pytest.raises(KeyboardInterrupt):
            run(folder, "asyncdrop", handler=handle, **changes)
        assert run(folder, "asyncdrop", resume=folder, **changes) == whole

    def test_nodes_that_are_others_play_the_same_devices(self, tmp_path):
        whole = run(tmp_path / "run", "asyncdrop")
        resume = checkpoints(tmp_path / "run")[2]
        others = range(101, 111)
        assert run(tmp_path / "run", "asyncdrop", resume=resume, node_ids=others) == (
            whole
        )

    def test_orders_of_one_version_share_what_they_were_sent(self, tmp_path):
        run(tmp_path, "fedbuff")
        together = 0
        for path in checkpoints(tmp_path)[1:]:
            state = state_of(path)
            sent = {}
            for order in state.orders:
                base = sent.setdefault(order.base_version, order.part.arrays)
                assert order.part.arrays["0.weight"] is base["0.weight"]
            together += len(state.orders) - len(sent)
        assert together > 0

    def test_going_back_forgets_what_came_after(self, tmp_path):
        run(tmp_path, "asyncdrop")
        resume = checkpoints(tmp_path)[1]
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "asyncdrop", resume=resume, handler=stopping_at(1))
        names = [path.name for path in checkpoints(tmp_path)]
        assert names == ["000001", "000002", "000003"]
        assert newest(tmp_path).updates == newest(resume).updates == 4

    def test_a_fleet_that_has_shrunk_cannot_go_on(self, tmp_path):
        run(tmp_path, "asyncdrop")
        resume = checkpoints(tmp_path)[1]
        fewer = {"node_ids": range(1, 8), "timeout": 0.01}
        with pytest.raises(RunError, match="7 of 8 nodes"):
            run(tmp_path, "asyncdrop", resume=resume, **fewer)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"rounds": 5}, "num-rounds 4, now 5"),
            ({"seed": 4}, "seed 3, now 4"),
            ({"alpha": 0.25}, "alpha 0.5, now 0.25"),
            ({"in_flight": 3}, "in-flight 4, now 3"),
        ],
    )
    def test_another_configuration(self, changes, says, tmp_path):
        run(tmp_path, "asyncdrop")
        with pytest.raises(CheckpointError, match=says):
            run(tmp_path, "asyncdrop", resume=tmp_path, **changes)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"schedule": StepDecay((1,), 0.5)}, r"schedule.milestones \[3, 6\], now"),
            ({"late": "drop"}, "faults.late 'discount', now 'drop'"),
            ({"fleet": speed_levels}, "fleet '[0-9a-f]{64}', now '[0-9a-f]{64}'"),
            ({"fleet": None}, "fleet '[0-9a-f]{64}', now None"),
            ({"selection": Uniform()}, "selection 'Stratified', now 'Uniform'"),
            ({"outlier_factor": 9}, "outlier_factor 30.0, now 9"),
            ({"max_examples": 5}, "max_examples 1000000000, now 5"),
            ({"evaluate_every": 2}, "evaluate_every 1, now 2"),
            ({"fraction_evaluate": 0.9}, "fraction_evaluate 0.3, now 0.9"),
            ({"mode": "masked"}, "mode 'sliced', now 'masked'"),
            ({"duration": "paper"}, "duration 'flops', now 'paper'"),
            ({"aggregator": Buffered(2)}, "aggregator None, now 'Buffered'"),
            ({"masks": RandomMask(0.5)}, "masks None, now 'RandomMask'"),
            ({"objective": StandardObjective(0.5)}, "logit-adjustment None, now 0.5"),
        ],
    )
    def test_other_arguments(self, changes, says, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "async-fedavg", handler=stopping_at(9))
        with pytest.raises(CheckpointError, match=says):
            run(tmp_path, "async-fedavg", resume=tmp_path, **changes)

    def test_defaults_that_the_settings_leave_out(self, tmp_path, monkeypatch):
        """Those of an own algorithm, which a run-config does not name, had changed."""
        with monkeypatch.context() as patch:
            patch.setattr(async_strategy, "run_settings", lambda *_: {})
            run(tmp_path, "asyncdrop")
            says = r"algorithm.alpha 0\.5, now 0\.25"
            with pytest.raises(CheckpointError, match=says):
                run(tmp_path, "asyncdrop", resume=tmp_path, alpha=0.25)

    def test_another_choice_of_codecs(self, tmp_path):
        changes = {"codec": Bits("q8")}
        whole = run(tmp_path, "asyncdrop", **changes)
        other = {"codec": Bits("q4")}
        with pytest.raises(CheckpointError, match=r"codec.name 'q8', now 'q4'"):
            run(tmp_path, "asyncdrop", resume=tmp_path, **other)
        resume, changes["codec"] = checkpoints(tmp_path)[1], Bits("q8")
        assert run(tmp_path, "asyncdrop", resume=resume, **changes) == whole

    def test_another_least_of_devices_in_flight(self, tmp_path):
        """4 of 8 nodes train at once, or 6: another run."""
        share = {"in_flight": None, "fraction_train": 0.5}
        run(tmp_path, "asyncdrop", **share)
        more = {**share, "min_train_nodes": 6}
        says = "now 'fraction_train=0.5, min_train_nodes=6'"
        with pytest.raises(CheckpointError, match=says):
            run(tmp_path, "asyncdrop", resume=tmp_path, **more)

    def test_another_algorithm(self, tmp_path):
        run(tmp_path, "asyncdrop")
        with pytest.raises(CheckpointError, match="algo 'asyncdrop', now 'fedbuff'"):
            run(tmp_path, "fedbuff", resume=tmp_path)

    def test_a_history_that_is_not_the_runs(self, tmp_path):
        run(tmp_path, "asyncdrop")
        (tmp_path / "history.jsonl").write_text("")
        with pytest.raises(CheckpointError, match="the checkpoint knows of"):
            run(tmp_path, "asyncdrop", resume=tmp_path)
        (tmp_path / "history.jsonl").unlink()
        with pytest.raises(CheckpointError, match="has 0 bytes"):
            run(tmp_path, "asyncdrop", resume=tmp_path)

    def test_another_model(self, tmp_path, monkeypatch):
        run(tmp_path, "async-fedavg")
        monkeypatch.setitem(NETS, "async-fedavg", lambda: torch.nn.Linear(4, 3))
        with pytest.raises(CheckpointError, match=r"is of another model \(see "):
            run(tmp_path, "async-fedavg", resume=tmp_path)

    def test_the_model_in_another_precision(self, tmp_path, monkeypatch):
        """It went on in that of the checkpoint, and nothing said so."""
        run(tmp_path, "async-fedavg")
        net = NETS["async-fedavg"]
        monkeypatch.setitem(NETS, "async-fedavg", lambda: net().double())
        with pytest.raises(CheckpointError, match=r"is of another model \(see "):
            run(tmp_path, "async-fedavg", resume=tmp_path)


def test_a_checkpoint_of_a_version_that_did_not_save_arguments(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(runs, "run_arguments", lambda strategy, run: {})
        whole = run(tmp_path, "asyncdrop")
    resume = checkpoints(tmp_path)[2]
    assert run(tmp_path, "asyncdrop", resume=resume) == whole


class Counts(Callback):
    """Counts updates; a run that resumes continues the count."""

    def __init__(self):
        self.updates = 0

    def on_update(self, state, merged):
        self.updates += 1

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


class Doubles(Counts):
    """Counts them twice."""

    def on_update(self, state, merged):
        self.updates += 2


class TestCallbacks:
    @pytest.fixture
    def whole(self, tmp_path):
        return run(tmp_path, "asyncdrop", callbacks=[Counts(), Doubles()])

    def resumed(self, folder, *callbacks, checkpoint=2):
        resume = checkpoints(folder)[checkpoint]
        return run(folder, "asyncdrop", resume=resume, callbacks=callbacks)

    def test_they_may_change_places(self, whole, tmp_path, log):
        counts, doubles = Counts(), Doubles()
        assert self.resumed(tmp_path, doubles, counts) == whole
        assert (counts.updates, doubles.updates) == (16, 32)
        assert "callback:" not in log.text

    def test_one_may_go_and_come_back(self, whole, tmp_path, log):
        counts, doubles = Counts(), Doubles()
        assert self.resumed(tmp_path, counts) == whole
        assert counts.updates == 16
        assert "the state of 'callback:Doubles', which is not there now" in log.text
        # That run saved itself without it.
        assert self.resumed(tmp_path, counts, doubles, checkpoint=3) == whole
        assert "does not know 'callback:Doubles': it starts afresh" in log.text
        assert (counts.updates, doubles.updates) == (16, 2 * 4)

    def test_two_of_one_name_are_refused_before_the_first_update(self, tmp_path):
        with pytest.raises(ConfigError, match="give one of them another `name`"):
            run(tmp_path, "asyncdrop", callbacks=[Counts(), Counts()])
        other = Counts()
        other.name = "other"
        run(tmp_path, "asyncdrop", callbacks=[Counts(), other])


class TestWallClock:
    WALL = MappingProxyType(
        {
            "fleet": None,
            "node_ids": range(1, 5),
            "fraction_evaluate": 0.0,
            "quarantine_after": 0,
            "timeout": 5,
        }
    )

    def test_tasks_in_flight_are_lost_and_nothing_is_merged_twice(self, tmp_path, log):
        seeds = []

        class Seeds(Callback):
            """The seed of a task tells it from all others."""

            def on_update(self, state, merged):
                seeds.append(merged.reply.metrics["metrics"]["loss"])

        changes = {**self.WALL, "callbacks": [Seeds()]}
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "fedbuff", handler=stopping_at(11), **changes)
        before = lines(tmp_path)
        assert before[-1]["event"] != "end"
        done = sum(line["event"] == "update" for line in before)
        outcome = run(tmp_path, "fedbuff", resume=tmp_path, **changes)
        history = outcome["history"]
        assert history[: len(before)] == before
        lost = [line for line in history if line["event"] == "failure"]
        assert [line["kind"] for line in lost] == ["interrupted"] * len(lost)
        assert 1 <= len(lost) <= 4
        assert 0 < done < 16
        assert history[-1]["failures"] == {"interrupted": len(lost)}
        assert len(seeds) == len(set(seeds)) == history[-1]["updates"] == 16
        times = [line["time"] for line in history if line["event"] == "update"]
        assert times == sorted(times)

    def test_it_does_not_keep_what_nobody_sends_again(self, tmp_path):
        run(tmp_path, "fedbuff", **self.WALL)
        state = state_of(checkpoints(tmp_path)[1])
        assert all(order.part.arrays is None for order in state.in_flight.values())

    def test_it_keeps_its_size_whoever_is_connected(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "asyncdrop", handler=stopping_at(9), **self.WALL)
        fewer = {**self.WALL, "node_ids": [2, 4], "min_available_nodes": 1}
        outcome = run(tmp_path, "asyncdrop", resume=tmp_path, **fewer)
        updates = [line for line in outcome["history"] if line["event"] == "update"]
        assert [line["round"] for line in updates] == [n // 4 + 1 for n in range(16)]

    @pytest.mark.usefixtures("fresh_nodes")
    @pytest.mark.parametrize("algorithm", ["fedavg", "fedbuff", "asyncdrop"])
    def test_a_share_of_the_nodes_is_one_of_those_at_the_start(
        self, algorithm, tmp_path
    ):
        class Nodes(Callback):
            """All are back after a round."""

            most = 0

            def on_dispatch(self, state, order):
                self.most = max(self.most, len(state.in_slots))
                grids[-1].node_ids = list(range(1, 9))

        def around(grid):
            grids.append(grid)
            return grid

        grids, before, after = [], Nodes(), Nodes()
        share = {**self.WALL, "in_flight": None, "fraction_train": 0.75}
        whole = {**share, "node_ids": range(1, 9), "callbacks": [before]}
        whole["handler"] = stopping_at(15)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, algorithm, around=around, **whole)
        fewer = {**share, "node_ids": [1, 2], "callbacks": [after]}
        run(tmp_path, algorithm, around=around, resume=tmp_path, **fewer)
        assert before.most == after.most == 6

    def test_a_run_that_ended_for_want_of_devices_goes_on_when_they_are_back(
        self, tmp_path, log
    ):
        def dies(message):
            if next(tasks) > 7:
                return failing(message)
            return client(message)

        tasks = count(1)
        ended = run(tmp_path, "async-fedavg", handler=dies, **self.WALL)
        assert ended["history"][-1]["ended"] == "failures"
        assert "to resume: do the same with Checkpointer" in log.text
        done = ended["history"][-1]["updates"]
        assert 0 < done < 16
        whole = run(tmp_path, "async-fedavg", resume=tmp_path, **self.WALL)
        assert whole["history"][-1]["updates"] == 16
        assert "ended" not in whole["history"][-1]


def test_a_signal_says_how_to_go_on_and_stops_at_once(tmp_path, log):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "asyncdrop", handler=stopping_at(1))
    assert "interrupted; to resume: do the same with Checkpointer" in log.text
    assert newest(tmp_path).updates == 0


@pytest.fixture
def waits(monkeypatch):
    """Return an event that is set when the loop waits for an evaluation."""
    event, begin = threading.Event(), ServerEvaluator.__init__

    def noting(evaluator, evaluate_fn, patiently, **options):
        @contextmanager
        def noted():
            with patiently():
                event.set()
                yield

        begin(evaluator, evaluate_fn, noted, **options)

    monkeypatch.setattr(ServerEvaluator, "__init__", noting)
    return event


@pytest.mark.parametrize("rounds", [1, 9])
def test_a_signal_does_not_wait_for_an_evaluation(rounds, tmp_path, waits):
    """The loop waits for one at the end, and before where two are waiting."""
    saved, outcomes = threading.Event(), []

    class Saved(Callback):
        def on_interrupt(self, state):
            saved.set()

    def evaluate(number, record):
        if not outcomes:
            assert waits.wait(300)
            time.sleep(0.2)  # it is about to wait
            os.kill(os.getpid(), signal.SIGINT)
            outcomes.append(saved.wait(300))

    strategy = STRATEGIES["async-fedavg"](
        in_flight=2,
        fleet=FLEET,
        fraction_evaluate=0.0,
        checkpointer=Checkpointer(tmp_path),
        callbacks=[Saved()],
    )
    arguments = record({"w": torch.zeros(2)}), rounds
    with pytest.raises(KeyboardInterrupt):
        strategy.start(HandlerGrid(plus_one), *arguments, evaluate_fn=evaluate)
    assert outcomes == [True]
    pending = newest(tmp_path).parts["evaluations"]["server"]["pending"]
    assert [each["round"] for each in pending] == [0, 1, 2][: rounds + 1]


def test_without_checkpoints_a_signal_is_left_alone():
    strategy = STRATEGIES["async-fedavg"](in_flight=2)
    grid = HandlerGrid(stopping_at(2))
    with pytest.raises(KeyboardInterrupt) as caught:
        strategy.start(grid, record({"w": torch.zeros(2)}), train_config={"lr": 0.1})
    assert caught.value.__context__ is None


def test_a_disk_that_is_full_costs_a_warning(tmp_path, log):
    (tmp_path / "checkpoints").write_text("in the way")
    outcome = run(tmp_path, "asyncdrop")
    assert outcome["history"][-1]["updates"] == 16
    assert "no checkpoint at update 4, and the run continues" in log.text
