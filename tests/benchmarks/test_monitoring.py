"""The benchmark of what observers cost: each update that is counted has its span."""

import time
from itertools import cycle

import pytest

from benchmarks import monitoring

pytest.importorskip("opentelemetry.exporter.otlp.proto.common")


def test_no_span_is_lost(monkeypatch):
    class Slow(monitoring._Encoder):
        def export(self, spans):
            time.sleep(0.02)
            made.append(self)
            return super().export(spans)

    made = []
    monkeypatch.setattr(monitoring, "_Encoder", Slow)
    monkeypatch.setattr(monitoring, "SPANS", 5_120)
    updates = cycle([monitoring._update_of(device) for device in range(9)])
    assert monitoring._seconds_per_span(updates) > 0
    assert made[0].spans >= 5_120
