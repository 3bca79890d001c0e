"""The spans of runs that are worked out by hand, by OpenTelemetry's own SDK."""

import hashlib
import json
import logging
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from flwr_asyncdrop.client import traceparent
from flwr_asyncdrop.exceptions import ConfigError, Interrupted
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.observers import OpenTelemetryTracing
from flwr_asyncdrop.observers.tracing.exporter import PatientExporter
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply
from scripts.flwr_run import free_ports
from tests.grids import HandlerGrid
from tests.observers.orders import order_of
from tests.runs import Run, failing, plus_one

pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK is not installed")

from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

SHA = hashlib.sha256(b"a task").hexdigest()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


class Spans:
    """The spans of a run, by what they are of."""

    def __init__(self, exporter):
        self.all = exporter.get_finished_spans()
        self.tasks = self._named("asyncdrop.task")
        self.evaluations = self._named("asyncdrop.evaluation")
        (self.run,) = self._named("asyncdrop.run")

    def _named(self, name):
        return [span for span in self.all if span.name == name]

    def outcomes(self):
        return [span.attributes["asyncdrop.outcome"] for span in self.tasks]


def traced(grid, **settings):
    """Run on a grid; return the run and its spans."""
    exporter = InMemorySpanExporter()
    run = Run(grid, callbacks=(OpenTelemetryTracing(exporter=exporter),), **settings)
    return run.go(), Spans(exporter)


class Played:
    """A run that the test plays by hand."""

    def __init__(self, tracing=None, *, fleet=None):
        self.exporter = InMemorySpanExporter()
        self.tracing = tracing or OpenTelemetryTracing(exporter=self.exporter)
        self.tracing.on_fleet(Fleet(1) if fleet is None else fleet)
        self.state = RunState.start_from({}, seed=3)

    def dispatch(self, message_id="m1"):
        order = order_of(0, 1, device=0, dispatched_at=self.state.time)
        self.state.in_flight[message_id] = order
        self.tracing.on_dispatch(self.state, order)
        return order

    def merge(self, order):
        self.state.in_flight.clear()
        self.state.updates += 1
        merged = Merged(order, Reply({}, 1, RecordDict(), 900), 0, 1)
        self.tracing.on_update(self.state, merged)

    def spans(self):
        return Spans(self.exporter)


def seconds(span, of):
    """Return begin and end of a span, in seconds from the begin of another."""
    return (
        pytest.approx((span.start_time - of.start_time) / 1e9, abs=1e-6),
        pytest.approx((span.end_time - of.start_time) / 1e9, abs=1e-6),
    )


def test_a_run_of_two_devices_worked_out_by_hand():
    """Device 0 takes 2 s and device 1 takes 3 s; the model is two float32 numbers.

    Merged: device 0 at 2 s, 1 at 3 s, 0 at 4 s, and, both at 6 s, 1 and 0. The update
    at 3 s was sent version 0, and version 1 is there.
    """
    run, spans = traced(
        HandlerGrid(plus_one, node_ids=[1, 2]), seconds=(2.0, 3.0), rounds=2
    )
    assert run.recorder.times == [2.0, 3.0, 4.0, 6.0]
    assert spans.outcomes() == ["merged"] * 4
    assert [seconds(span, spans.run) for span in spans.tasks] == [
        (0.0, 2.0),
        (0.0, 3.0),
        (2.0, 4.0),
        (3.0, 6.0),
    ]
    assert seconds(spans.run, spans.run) == (0.0, 6.0)
    second = spans.tasks[1]
    size = run.recorder.merged[1].reply.num_bytes
    assert dict(second.attributes) == {
        "asyncdrop.run": f"{spans.run.context.trace_id:032x}",
        "asyncdrop.clock": "virtual",
        "asyncdrop.task": 1,
        "asyncdrop.device": 1,
        "asyncdrop.node_id": "2",
        "asyncdrop.rank": 1,
        "asyncdrop.speed_group": 1,
        "asyncdrop.round": 1,
        "asyncdrop.base_version": 0,
        "asyncdrop.compute": 1.0,
        "asyncdrop.bytes_down": size,
        "asyncdrop.bytes_up": size,
        "asyncdrop.virtual_seconds": 3.0,
        "asyncdrop.outcome": "merged",
        "asyncdrop.staleness": 1,
        "asyncdrop.queued_staleness": 0,
        "asyncdrop.late": False,
    }
    assert second.kind is SpanKind.CLIENT
    assert second.status.status_code is StatusCode.UNSET


def test_each_task_is_a_trace_that_links_to_that_of_the_run():
    _, spans = traced(HandlerGrid(plus_one), seconds=(1.0, 1.0, 2.0))
    assert len({span.context.trace_id for span in spans.all}) == len(spans.tasks) + 1
    for span in spans.tasks:
        assert span.parent is None
        (link,) = span.links
        assert link.context == spans.run.context


def test_a_task_that_a_device_drops_is_an_error():
    profiles = (DeviceProfile(1.0), DeviceProfile(1.0, dropout=0.999999))
    _, spans = traced(
        HandlerGrid(plus_one, node_ids=[1, 2]), profiles=profiles, rounds=2
    )
    lost = [span for span in spans.tasks if span.attributes["asyncdrop.device"] == 1]
    first = lost[0]
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "the simulated device dropped out"
    assert first.attributes["error.type"] == "dropout"
    assert first.attributes["asyncdrop.outcome"] == "lost"
    assert "asyncdrop.bytes_up" not in first.attributes


@pytest.mark.parametrize("late", ["merge", "drop"])
def test_there_is_a_span_for_each_task_whatever_becomes_of_it(late):
    """Some are merged, some fail, come late or are still out when the time is up."""

    def unreliable(message):
        node = message.metadata.dst_node_id
        return failing(message) if node == 3 else plus_one(message)

    slow = tuple(DeviceProfile(s, jitter=1.0) for s in (1.0, 1.0, 2.0, 4.0, 4.0))
    run, spans = traced(
        HandlerGrid(unreliable, node_ids=range(1, 6)),
        profiles=slow,
        in_flight=4,
        rounds=100,
        max_seconds=40.0,
        faults=FaultPolicy(deadline=1.0, late=late, quarantine_after=2),
    )
    state, found = run.state, spans.outcomes()
    assert found.count("merged") == state.updates > 0
    assert found.count("lost") == sum(state.failures.values()) > 0
    assert found.count("unfinished") == len(state.in_flight) + len(state.late) > 0
    assert len(found) == state.dispatched
    assert sorted(span.attributes["asyncdrop.task"] for span in spans.tasks) == list(
        range(state.dispatched)
    )
    kinds = [span.attributes.get("error.type") for span in spans.tasks]
    assert {kind: kinds.count(kind) for kind in state.failures} == state.failures
    was_late = [span.attributes.get("asyncdrop.late", False) for span in spans.tasks]
    assert sum(was_late) == sum(merged.late for merged in run.recorder.merged)
    assert spans.run.attributes["asyncdrop.updates"] == state.updates
    assert spans.run.attributes["asyncdrop.bytes_down"] == state.bytes_down


def test_on_the_wall_clock_a_span_has_its_real_time():
    before = time.time()
    played = Played()
    played.tracing.on_start(played.state)
    played.state.time = 0.5
    order = played.dispatch()
    played.state.time = 2.0
    played.merge(order)
    played.tracing.on_end(played.state)
    spans = played.spans()
    (task,) = spans.tasks
    assert before <= spans.run.start_time / 1e9 <= time.time()
    assert seconds(task, spans.run) == (0.5, 2.0)
    assert task.attributes["asyncdrop.clock"] == "wall"
    assert "asyncdrop.virtual_seconds" not in task.attributes


class TestTheTraceOfATask:
    def test_on_a_superlink_its_ids_are_those_of_the_message(self):
        played = Played()
        played.tracing.on_start(played.state)
        played.merge(played.dispatch(SHA))
        played.tracing.on_end(played.state)
        (task,) = played.spans().tasks
        message = Message(RecordDict(), 7, "train")
        message.metadata.__dict__["_message_id"] = SHA
        trace, span = task.context.trace_id, task.context.span_id
        assert traceparent(message) == f"00-{trace:032x}-{span:016x}-01"
        assert SHA.startswith(f"{trace:032x}{span:016x}")

    @pytest.mark.parametrize("message_id", ["", "message-1", SHA[:32], SHA.upper()])
    def test_elsewhere_its_ids_are_random(self, message_id):
        message = Message(RecordDict(), 7, "train")
        message.metadata.__dict__["_message_id"] = message_id
        assert traceparent(message) == ""

    def test_a_client_continues_it(self):
        """As ``docs/monitoring.md`` does."""
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import (
            TraceContextTextMapPropagator,
        )

        message = Message(RecordDict(), 7, "train")
        message.metadata.__dict__["_message_id"] = SHA
        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        carrier = {"traceparent": traceparent(message)}
        parent = TraceContextTextMapPropagator().extract(carrier)
        provider.get_tracer("client").start_span("train", context=parent).end()
        (span,) = exporter.get_finished_spans()
        assert f"{span.context.trace_id:032x}" == SHA[:32]
        assert f"{span.parent.span_id:016x}" == SHA[32:48]


class TestEvaluations:
    def evaluated(self, fleet):
        played = Played(fleet=fleet)
        played.tracing.on_start(played.state)
        played.state.time = 5.0
        metrics = MetricRecord({"accuracy": 0.5, "per-class": [0.1, 0.9]})
        evaluation = Evaluation("server", 2, 16, 3.0, metrics)
        played.tracing.on_evaluation(played.state, evaluation)
        played.tracing.on_end(played.state)
        spans = played.spans()
        (span,) = spans.evaluations
        assert span.parent == spans.run.context
        assert span.attributes["asyncdrop.source"] == "server"
        assert span.attributes["asyncdrop.round"] == 2
        assert span.attributes["asyncdrop.update"] == 16
        assert span.attributes["asyncdrop.metric.accuracy"] == 0.5
        assert "asyncdrop.metric.per-class" not in span.attributes
        return seconds(span, spans.run)

    def test_on_the_wall_clock_they_take_time(self):
        assert self.evaluated(Fleet(1)) == (3.0, 5.0)

    def test_on_the_virtual_clock_they_take_none(self):
        assert self.evaluated(Fleet(1, [DeviceProfile(1.0)])) == (3.0, 3.0)


class TestHowTheRunEnds:
    def test_finished(self):
        _, spans = traced(HandlerGrid(plus_one), seconds=(1.0, 2.0, 3.0))
        assert spans.run.attributes["asyncdrop.outcome"] == "finished"
        assert spans.run.status.status_code is StatusCode.UNSET

    def test_with_an_error(self):
        class Fails(Callback):
            def on_update(self, state, merged):
                raise RuntimeError("no power")

        exporter = InMemorySpanExporter()
        tracing = OpenTelemetryTracing(exporter=exporter)
        grid = HandlerGrid(plus_one, node_ids=[1])
        with pytest.raises(RuntimeError):
            Run(grid, seconds=(1.0,), callbacks=(tracing, Fails())).go()
        run = Spans(exporter).run
        assert run.attributes["asyncdrop.outcome"] == "failed"
        assert run.status.description == "RuntimeError: no power"

    def test_early(self):
        played = Played()
        played.tracing.on_start(played.state)
        played.state.ended = "timeout"
        played.tracing.on_end(played.state)
        run = played.spans().run
        assert run.attributes["asyncdrop.outcome"] == "ended early"
        assert run.status.description == "timeout"

    def test_interrupted_with_a_task_that_is_out(self):
        """The task gets its span from the process that resumes the run."""
        played = Played()
        played.tracing.on_start(played.state)
        played.dispatch()
        played.tracing.on_interrupt(played.state)
        spans = played.spans()
        assert spans.tasks == []
        assert spans.run.attributes["asyncdrop.outcome"] == "interrupted"


class TestResume:
    def test_a_new_span_of_the_same_run_links_to_the_one_before(self):
        first = Played()
        first.tracing.on_start(first.state)
        order = first.dispatch(SHA)
        first.state.time = 4.0
        saved = json.loads(json.dumps(first.tracing.state_dict()))
        first.tracing.on_interrupt(first.state)
        earlier = first.spans().run

        second = Played()
        second.state.in_flight[SHA], second.state.time = order, 4.0
        second.tracing.load_state_dict(saved)
        second.tracing.on_resume(second.state)
        second.state.in_flight.clear()
        second.tracing.on_failure(second.state, order, "interrupted", "the server")
        second.tracing.on_end(second.state)
        spans = second.spans()
        (link,) = spans.run.links
        assert link.context.trace_id == earlier.context.trace_id
        assert link.context.span_id == earlier.context.span_id
        assert spans.run.context.trace_id != earlier.context.trace_id
        (task,) = spans.tasks
        assert seconds(task, spans.run) == (-4.0, 0.0)
        assert f"{task.context.trace_id:032x}" == SHA[:32]
        ids = {span.attributes["asyncdrop.run"] for span in (earlier, *spans.all)}
        assert ids == {f"{earlier.context.trace_id:032x}"}

    def test_what_is_saved_before_the_start(self):
        tracing = OpenTelemetryTracing(exporter=InMemorySpanExporter())
        saved = json.loads(json.dumps(tracing.state_dict()))
        played = Played()
        played.tracing.load_state_dict(saved)
        played.tracing.on_resume(played.state)
        played.tracing.on_end(played.state)
        assert played.spans().run.links == ()


def test_a_share_of_local_steps_is_said():
    played = Played()
    played.tracing.on_start(played.state)
    played.merge(played.dispatch())
    order = played.dispatch()
    played.merge(replace(order, part=order.part.with_work(0.25)))
    played.tracing.on_end(played.state)
    found = [task.attributes.get("asyncdrop.work") for task in played.spans().tasks]
    assert found == [None, 0.25]


def test_only_tasks_that_are_out_are_in_memory():
    """A device that asks for frozen tensors ends its task without a hook."""
    played = Played()
    played.tracing.on_start(played.state)
    for number in range(3):
        played.dispatch(f"m{number}")
        played.state.in_flight.clear()
    played.tracing.on_round(played.state, 1)
    assert played.tracing._messages == {}
    played.merge(played.dispatch())
    assert played.tracing._messages == {}
    played.tracing.on_end(played.state)


def test_a_run_that_never_began_has_no_spans_to_send():
    played = Played()
    played.tracing.on_end(played.state)
    assert played.exporter.get_finished_spans() == ()


class TestTheEnvironment:
    def service(self):
        played = Played()
        played.tracing.on_start(played.state)
        played.tracing.on_end(played.state)
        return played.spans().run.resource.attributes["service.name"]

    def test_the_service_has_the_name_of_the_package(self):
        assert self.service() == "flwr-asyncdrop"

    def test_or_the_one_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("OTEL_SERVICE_NAME", "wards")
        assert self.service() == "wards"

    def test_the_sampler_is_that_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        played = Played()
        played.tracing.on_start(played.state)
        played.merge(played.dispatch(SHA))
        played.tracing.on_end(played.state)
        assert played.exporter.get_finished_spans() == ()

    def test_a_disabled_sdk_sends_nothing(self, monkeypatch):
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        exporter = InMemorySpanExporter()
        tracing = OpenTelemetryTracing(exporter=exporter)
        grid = HandlerGrid(plus_one, node_ids=[1])
        Run(grid, seconds=(1.0,), callbacks=(tracing,)).go()
        assert exporter.get_finished_spans() == ()

    def test_what_has_no_sense_ends_the_run_before_it_starts(self, monkeypatch):
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
        tracing = OpenTelemetryTracing(exporter=InMemorySpanExporter())
        grid = HandlerGrid(plus_one, node_ids=[1])
        with pytest.raises(ConfigError, match=r"environment variables OTEL_\*"):
            Run(grid, seconds=(1.0,), callbacks=(tracing,)).go()
        assert grid.pushed == []

    @pytest.mark.parametrize("traces", ["", "TRACES_"])
    def test_a_protocol_that_spans_are_not_sent_by_is_refused(
        self, monkeypatch, traces
    ):
        name = f"OTEL_EXPORTER_OTLP_{traces}PROTOCOL"
        monkeypatch.setenv(name, "grpc")
        grid = HandlerGrid(plus_one, node_ids=[1])
        run = Run(grid, seconds=(1.0,), callbacks=(OpenTelemetryTracing(),))
        with pytest.raises(ConfigError, match=f"^{name}='grpc' .*http/protobuf"):
            run.go()
        assert grid.pushed == []

    def test_the_protocol_of_traces_comes_before_that_of_all(self, monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        grid = HandlerGrid(plus_one, node_ids=[1])
        Run(grid, seconds=(1.0,), callbacks=(OpenTelemetryTracing(),)).go()
        assert len(grid.pushed) > 0


class Collector:
    """An exporter whose answers are given, an error for None."""

    def __init__(self, *answers):
        self.answers, self.tries = list(answers), 0

    def export(self, spans):
        self.tries += 1
        if (answer := self.answers.pop(0)) is None:
            raise OSError("no route")
        return SpanExportResult.SUCCESS if answer else SpanExportResult.FAILURE

    def shutdown(self):
        pass


class EndIsTimed(OpenTelemetryTracing):
    """Notes how long its end takes."""

    def on_end(self, state):
        began = time.monotonic()
        super().on_end(state)
        self.seconds = time.monotonic() - began


class TestACollectorThatIsDown:
    def test_is_asked_ever_less_often(self):
        clock = SimpleNamespace(now=0.0)
        collector = Collector(*[False] * 8)
        exporter = PatientExporter(collector, lambda: clock.now)
        asked = []
        for now in range(2000):
            before, clock.now = collector.tries, now
            exporter.export(["span"])
            if collector.tries > before:
                asked.append(now)
        assert asked == [0, 30, 90, 210, 450, 930, 1410, 1890]

    def test_is_named_in_one_warning_until_it_is_back(self, caplog):
        clock = SimpleNamespace(now=0.0)
        collector = Collector(None, False, True, False)
        exporter = PatientExporter(collector, lambda: clock.now)
        with caplog.at_level(logging.INFO, logger="flwr.asyncdrop"):
            for clock.now in (0, 1, 30, 90, 91):
                exporter.export(["one", "two"])
        said = [r.getMessage() for r in caplog.records if r.levelno < logging.ERROR]
        assert len(said) == 3
        assert "takes no spans" in said[0]
        assert said[1] == "the collector takes spans again: 6 are lost"
        assert "takes no spans" in said[2]

    def test_costs_the_run_nothing_but_a_moment_at_the_end(self, monkeypatch, caplog):
        exporters = "opentelemetry.exporter.otlp.proto.http"
        pytest.importorskip(exporters, reason="the exporter is not installed")
        endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        fleet = {"seconds": (1.0, 2.0, 3.0), "rounds": 300}  # more than a batch
        plain = Run(HandlerGrid(plus_one), **fleet).go()
        tracing = EndIsTimed()
        with caplog.at_level(logging.WARNING, logger="flwr.asyncdrop"):
            run = Run(HandlerGrid(plus_one), callbacks=(tracing,), **fleet).go()
        assert tracing.seconds < 15
        assert run.recorder.history() == plain.recorder.history()
        said = [r.getMessage() for r in caplog.records if r.name == "flwr.asyncdrop"]
        assert sum("takes no spans" in text for text in said) == 1


def test_an_interruption_before_the_start_is_its_own_error():
    """`on_end` comes even if `on_start` of another callback has failed."""

    class Stops(Callback):
        def on_start(self, state):
            raise Interrupted(2)

    exporter = InMemorySpanExporter()
    tracing = OpenTelemetryTracing(exporter=exporter)
    grid = HandlerGrid(plus_one, node_ids=[1])
    with suppress(Interrupted):
        Run(grid, seconds=(1.0,), callbacks=(Stops(), tracing)).go()
    assert exporter.get_finished_spans() == ()
