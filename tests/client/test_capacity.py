"""The mod that says what a device can do, called as Flower calls it."""

import time
from typing import ClassVar

import pytest
import torch
from flwr.app import Context, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_asyncdrop import CapacityMod, wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.client.memory import training_memory
from flwr_asyncdrop.client_app import app as ready_app
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.flower_internals.identity import assume_identity
from flwr_asyncdrop.machine_memory import Memory
from tests.runs import KEYS, answer, failing

assume_identity(run_id=1)

GREETING = wire.make_probe(5, ttl=60)


def task(partition=None, kind=MessageType.TRAIN):
    count = None if partition is None else 9
    config = wire.TaskConfig(1, 11, partition, count)
    arrays = wire.to_record({})
    return wire.make_task(arrays, {}, config, node_id=5, keys=KEYS, message_type=kind)


def context(run_config=None, **node_config):
    return Context(1, 5, node_config, RecordDict(), run_config or {})


def app_of(train, **options):
    app = ClientApp(mods=[CapacityMod(**options)])
    app.train()(train)
    app.evaluate()(lambda message, _: answer(message, {}))
    return app


def slow(message, _):
    time.sleep(0.05)
    return answer(message, {})


def test_a_task_is_timed_though_the_time_of_day_is_set(monkeypatch):
    def train(message, _):
        monkeypatch.setattr(time, "time", lambda: 0.0)
        return slow(message, _)

    report = wire.read_report(app_of(train)(task(), context()))
    assert 0.05 <= report.train_seconds <= report.finished_at - report.received_at < 5
    assert report.memory > 0
    assert (report.capacity, report.bandwidth) == (0.0, 0.0)


def test_the_app_may_say_itself_how_long_its_steps_took():
    def train(message, _):
        reply = answer(message, {})
        reply.content["times"] = MetricRecord({"fit-time": 7.5})
        return reply

    report = wire.read_report(
        app_of(train, train_seconds="fit-time")(task(), context())
    )
    assert report.train_seconds == 7.5


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -1.0, 1e300])
def test_seconds_that_cannot_be_cost_no_report(said):
    """What the owner declares, and the memory, would go with it."""

    def train(message, _):
        return answer(message, {}, **{"wall-train-seconds": said})

    report = wire.read_report(app_of(train)(task(), context(capacity=2)))
    assert report is not None
    assert report.capacity == 2.0
    assert 0 < report.train_seconds < 60


def test_what_the_node_config_declares_is_reported():
    declared = {"capacity": 2, "memory-mb": 512, "bandwidth-mbps": 8.0}
    report = wire.read_report(app_of(slow)(task(), context(**declared)))
    assert report.capacity == 2.0
    assert report.memory == 512_000_000
    assert report.bandwidth == 1_000_000


@pytest.mark.parametrize("value", [0, -1.0, "fast", float("nan"), True])
def test_a_declaration_that_is_no_positive_number_is_refused(value):
    with pytest.raises(ConfigError, match="must be a positive number"):
        app_of(slow)(task(), context(capacity=value))


def test_bytes_that_were_taken_for_megabytes_are_refused():
    """The server would not read the report, nor what was measured in it."""
    with pytest.raises(
        ConfigError, match=r"memory-mb=16000000000 .* 1e\+09 at the most"
    ):
        app_of(slow)(task(), context(**{"memory-mb": 16_000_000_000}))


def test_a_greeting_is_answered_without_the_app():
    def never(message, _):
        raise AssertionError("a greeting is no task")

    reply = app_of(never)(GREETING, context(capacity=2))
    report = wire.read_report(reply)
    assert (report.train_seconds, report.capacity) == (0.0, 2.0)
    assert reply.metadata.reply_to_message_id == GREETING.metadata.message_id

    measured = app_of(never, probe=lambda context: 3.25)(GREETING, context())
    assert wire.read_report(measured).train_seconds == 3.25


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_probe_that_measures_what_cannot_be_costs_no_report(said):
    reply = app_of(slow, probe=lambda context: said)(GREETING, context(capacity=2))
    report = wire.read_report(reply)
    assert report is not None
    assert (report.train_seconds, report.capacity) == (0.0, 2.0)


def test_an_evaluation_is_no_task():
    """Its reply has what the client returned, and no more."""
    reply = app_of(slow)(task(kind=MessageType.EVALUATE), context())
    assert reply.content.keys() == answer(task(), {}).content.keys()


def test_simulated_devices_and_failures_report_nothing():
    assert wire.read_report(app_of(slow)(task(partition=3), context())) is None
    failed = app_of(lambda message, _: failing(message))(task(), context())
    assert failed.has_error()


class TestReadyApp:
    NODE: ClassVar = {"partition-id": 2, "num-partitions": 6}

    def test_it_measures_a_few_steps_when_it_is_greeted(self):
        steps = {}
        for count in (100, 200):
            run_config = {"local-steps": count, "model": "mlp"}
            reply = ready_app(GREETING, context(run_config, **self.NODE))
            steps[count] = wire.read_report(reply).train_seconds / count
        assert all(1e-5 < seconds < 0.5 for seconds in steps.values())

    def test_it_measures_an_algorithm_that_sends_records_beside_the_model(self):
        run_config = {"model": "mlp", "algo": "tests.app.own:SentAlong"}
        reply = ready_app(GREETING, context(run_config, **self.NODE))
        assert wire.read_report(reply).train_seconds > 0

    def test_the_probe_leaves_the_initial_model_as_it_was(self):
        run_config = {"model": "mlp", "seed": 77}
        model = initial_model(RunConfig.parse(run_config))
        before = {name: t.clone() for name, t in model.state_dict().items()}
        ready_app(GREETING, context(run_config, **self.NODE))
        assert all((model.state_dict()[n] == t).all() for n, t in before.items())


class TestMemory:
    @pytest.fixture(autouse=True)
    def no_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def test_the_smaller_of_what_machine_and_container_have_left(self, tmp_path):
        meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
        meminfo.write_text("MemTotal: 9 kB\nMemAvailable:     4000 kB\n")
        assert training_memory(meminfo, cgroup) == 4_096_000
        cgroup.mkdir()
        (cgroup / "memory.max").write_text("3000000\n")
        (cgroup / "memory.current").write_text("1000000\n")
        (cgroup / "memory.stat").write_text("inactive_file 200000\n")
        assert training_memory(meminfo, cgroup) == 2_200_000

    def test_swap_is_none_to_train_in(self, tmp_path):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(
            "MemAvailable: 4000 kB\nSwapTotal: 9000 kB\nSwapFree: 9000 kB"
        )
        assert training_memory(meminfo, tmp_path) == 4_096_000
        assert Memory.here(meminfo, tmp_path, tmp_path).free == 13_312_000

    def test_an_older_kernel_says_it_elsewhere(self, tmp_path):
        meminfo, memory = tmp_path / "meminfo", tmp_path / "memory"
        meminfo.write_text("MemAvailable:     4000 kB\n")
        memory.mkdir()
        (memory / "memory.limit_in_bytes").write_text("3000000\n")
        (memory / "memory.usage_in_bytes").write_text("1000000\n")
        stat = "inactive_file 1\ntotal_inactive_file 200000\n"
        (memory / "memory.stat").write_text(stat)
        assert training_memory(meminfo, tmp_path) == 2_200_000
        (memory / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
        assert training_memory(meminfo, tmp_path) == 4_096_000

    def test_a_system_that_does_not_say(self, tmp_path):
        assert training_memory(tmp_path / "none", tmp_path / "none") == 0

    def test_a_gpu_has_its_own(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3_000, 16_000))
        assert training_memory() == 3_000

    def test_what_pytorch_keeps_of_it_after_a_task_is_free(self, monkeypatch):
        """A task's own memory, or a device that trains would seem to have none."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3_000, 16_000))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 12_000)
        assert training_memory() == 15_000
