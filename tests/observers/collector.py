"""A collector of OpenTelemetry spans on this machine, over OTLP and HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_SERVICE = "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
pytest.importorskip(_EXPORTER, reason="the exporter is not installed")
_otlp = pytest.importorskip(_SERVICE)


@contextmanager
def collector() -> Iterator[tuple[str, list]]:
    """Return its endpoint, and the spans that it gets."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = _otlp.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", spans
        server.shutdown()


def values_of(span) -> dict:
    """Return its attributes as texts and numbers."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value"))
        for each in span.attributes
    }
