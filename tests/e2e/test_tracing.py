"""Spans of tasks on a real SuperLink, whose devices know the traces of their tasks."""

import shutil
from pathlib import Path

import pytest

from benchmarks.chaos.deployment import Deployment
from tests.nightly import by_night
from tests.observers.collector import collector, values_of
from tests.processes import superlink_starts

pytestmark = superlink_starts

ROOT = Path(__file__).parents[2]
NODES = 2


def note_traces(app, path):
    """Have the client of an app write the trace of each message into a file."""
    client = app / "flwr_asyncdrop" / "client_app.py"
    client.write_text(
        client.read_text()
        + f"""

from flwr.clientapp import ClientApp
from flwr_asyncdrop.client import traceparent

_ready = app


class Noting(ClientApp):
    def __call__(self, message, context):
        with open({str(path)!r}, "a") as file:
            file.write(f"{{message.metadata.message_type}} {{traceparent(message)}}\\n")
        return _ready(message, context)


app = Noting()
"""
    )


@by_night
@pytest.mark.e2e
def test_a_device_knows_the_trace_of_its_task(tmp_path):
    app = tmp_path / "app"
    shutil.copytree(ROOT / "flwr_asyncdrop", app / "flwr_asyncdrop")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, app / name)
    notes = tmp_path / "notes.txt"
    note_traces(app, notes)
    home = tmp_path / "home"
    home.mkdir()
    with (
        collector() as (endpoint, spans),
        Deployment(home, NODES, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as deployment,
    ):
        run = deployment.run(
            app,
            **{
                "clock": "wall",
                "track": "opentelemetry",
                "model": "mlp",
                "num-rounds": 2,
                "in-flight": NODES,
                "local-steps": 2,
                "out-dir": str(tmp_path / "out"),
            },
        )
        run.wait(timeout=300)
        logs = deployment.logs()
    assert "model.safetensors" in logs, logs
    tasks = [span for span in spans if span.name == "asyncdrop.task"]
    merged = [t for t in tasks if values_of(t)["asyncdrop.outcome"] == "merged"]
    assert len(merged) == 2 * NODES
    lines = [line.split(" ") for line in notes.read_text().splitlines()]
    trained = {trace for kind, trace in lines if kind == "train"}
    assert {f"00-{t.trace_id.hex()}-{t.span_id.hex()}-01" for t in merged} <= trained
