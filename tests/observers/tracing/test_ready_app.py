"""The ready app with ``track='opentelemetry'``, and a collector that reads OTLP."""

from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.server.callbacks import Callback
from tests.observers.ready_app import run

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
SERVICE = "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
pytest.importorskip(EXPORTER, reason="the exporter is not installed")
otlp = pytest.importorskip(SERVICE)


class Stops(Callback):
    """Interrupts the run after its third update."""

    def on_pause(self, state):
        if state.updates == 3:
            raise Interrupted(2)


@pytest.fixture
def received(monkeypatch):
    """Every span that a collector gets, with its attributes as texts and numbers."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = otlp.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(map(read, scope.spans))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        yield spans
        server.shutdown()


def read(span):
    values = {
        each.key: getattr(each.value, each.value.WhichOneof("value"))
        for each in span.attributes
    }
    return span.name, values


def test_a_run_that_resumes_is_the_same_run_and_every_task_has_a_span(
    received, tmp_path
):
    plain = run({"out-dir": str(tmp_path / "plain")})
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        run({"out-dir": str(out), "track": "opentelemetry"}, [Stops()])
    assert run({"resume": str(out), "track": "opentelemetry"}) == plain
    updates = [line for line in plain if line["event"] == "update"]
    tasks = [values for name, values in received if name == "asyncdrop.task"]
    assert [task["asyncdrop.outcome"] for task in tasks] == ["merged"] * len(updates)
    for task, line in zip(tasks, updates, strict=True):
        assert task["asyncdrop.device"] == line["device"]
        assert task["asyncdrop.staleness"] == line["staleness"]
        assert task["asyncdrop.bytes_up"] == line["bytes_up"]
    names = Counter(name for name, _ in received)
    assert names["asyncdrop.run"] == 2
    evaluations = [line for line in plain if line["event"] == "evaluation"]
    assert names["asyncdrop.evaluation"] == len(evaluations)
    assert len({values["asyncdrop.run"] for _, values in received}) == 1
    runs = [values for name, values in received if name == "asyncdrop.run"]
    assert [each["asyncdrop.config.model"] for each in runs] == ["mlp"] * 2
    assert [each["asyncdrop.resumed_at_update"] for each in runs] == [0, 3]
    outcomes = [each["asyncdrop.outcome"] for each in runs]
    assert outcomes == ["interrupted", "finished"]
