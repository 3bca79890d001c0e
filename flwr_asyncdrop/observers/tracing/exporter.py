"""An exporter whose collector may be down for any part of a run."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

logger = logging.getLogger("flwr.asyncdrop")

_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 480.0


class PatientExporter:
    """Lets a collector that takes nothing be for a while: 30 s, and ever longer.

    OpenTelemetry's own exporter tries for 10 s, and logs each try, with every 512
    spans: spans would wait for each other, and the end of the run for all of them.
    """

    def __init__(
        self, exporter: Any, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._exporter = exporter
        self._timer = timer
        self._pause = 0.0  # none while the collector takes spans
        self._resumes = 0.0
        self._lost = 0

    def export(self, spans: Sequence[Any]) -> Any:
        """Send spans, or throw them away during a pause."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._pause and self._timer() < self._resumes:
            self._lost += len(spans)
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        except Exception:  # of a user's own exporter
            logger.exception("the exporter of OpenTelemetry failed")
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._note_success()
        else:
            self._note_failure(len(spans))
        return result

    def shutdown(self) -> None:
        """Let go of the collector."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what the exporter keeps."""
        return bool(self._exporter.force_flush(timeout_millis))

    def _note_success(self) -> None:
        if self._pause:
            logger.info("the collector takes spans again: %d are lost", self._lost)
        self._pause, self._lost = 0.0, 0

    def _note_failure(self, spans: int) -> None:
        if not self._pause:
            logger.warning(
                "the collector of OpenTelemetry takes no spans: they are lost until it "
                "does, and the run continues"
            )
        self._lost += spans
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._resumes = self._timer() + self._pause
