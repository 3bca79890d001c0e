"""The ready app with ``track='opentelemetry'``, and a collector that reads OTLP."""

from collections import Counter

import pytest

from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.server.callbacks import Callback
from tests.observers.collector import collector, values_of
from tests.observers.ready_app import run


class Stops(Callback):
    """Interrupts the run after its third update."""

    def on_pause(self, state):
        if state.updates == 3:
            raise Interrupted(2)


@pytest.fixture
def received(monkeypatch):
    with collector() as (endpoint, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        yield spans


def test_a_run_that_resumes_is_the_same_run_and_every_task_has_a_span(
    received, tmp_path
):
    plain = run({"out-dir": str(tmp_path / "plain")})
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        run({"out-dir": str(out), "track": "opentelemetry"}, [Stops()])
    assert run({"resume": str(out), "track": "opentelemetry"}) == plain
    updates = [line for line in plain if line["event"] == "update"]
    spans = [(span.name, values_of(span)) for span in received]
    tasks = [values for name, values in spans if name == "asyncdrop.task"]
    assert [task["asyncdrop.outcome"] for task in tasks] == ["merged"] * len(updates)
    for task, line in zip(tasks, updates, strict=True):
        assert task["asyncdrop.device"] == line["device"]
        assert task["asyncdrop.staleness"] == line["staleness"]
        assert task["asyncdrop.bytes_up"] == line["bytes_up"]
    names = Counter(name for name, _ in spans)
    assert names["asyncdrop.run"] == 2
    evaluations = [line for line in plain if line["event"] == "evaluation"]
    assert names["asyncdrop.evaluation"] == len(evaluations)
    assert len({values["asyncdrop.run"] for _, values in spans}) == 1
    runs = [values for name, values in spans if name == "asyncdrop.run"]
    assert [each["asyncdrop.config.model"] for each in runs] == ["mlp"] * 2
    assert [each["asyncdrop.resumed_at_update"] for each in runs] == [0, 3]
    outcomes = [each["asyncdrop.outcome"] for each in runs]
    assert outcomes == ["interrupted", "finished"]
