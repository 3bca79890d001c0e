"""A run as OpenTelemetry sees it: a trace of each task, and one of the run."""

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.outcomes import Ending, Outcome
from flwr_asyncdrop.observers.speed_groups import MOST_GROUPS, speed_group
from flwr_asyncdrop.observers.tracing.exporter import PatientExporter
from flwr_asyncdrop.observers.tracing.ids import SpanIds
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.versions import version_of

Attributes = Mapping[str, bool | int | float | str]

_SERVICE = "flwr-asyncdrop"
_MOST_METRICS = 32
_HTTP = "http/protobuf"
# Of the first that is set.
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class OpenTelemetryTracing(Callback):
    """Sends a span of each task to an OpenTelemetry collector, from dispatch to merge.

    ``docs/monitoring.md`` lists spans and attributes. Each task is a trace of its own,
    whose span links to that of the run: a run has more tasks than a trace can have
    spans. On a SuperLink a client can continue the trace: see
    `flwr_asyncdrop.client.traceparent`.

    The time of a span is the real time at which the run began plus the seconds on the
    run's clock. A span is made when its task ends, so a task that is out costs the id
    of its message. A collector that is down costs spans, never the run.

    Parameters
    ----------
    settings : mapping of str to bool, int, float or str
        Attributes of the run's span, as ``asyncdrop.config.NAME``.
    exporter : opentelemetry.sdk.trace.export.SpanExporter
        Where spans go, for one run; by default OTLP over HTTP, as the environment
        variables ``OTEL_*`` say.

    Raises
    ------
    MissingExtraError
        If OpenTelemetry's SDK or its exporter is not installed.
    ConfigError
        When the run begins, if an environment variable has no sense.
    """

    def __init__(
        self, settings: Attributes | None = None, *, exporter: Any = None
    ) -> None:
        require("opentelemetry.sdk.trace", "tracing")
        if exporter is None:
            require("opentelemetry.exporter.otlp.proto.http.trace_exporter", "tracing")
        self._settings = dict(settings or {})
        self._exporter = exporter
        self._clock = "wall"
        self._began = 0.0
        self._ids = SpanIds()
        self._messages: dict[int, str] = {}  # ids, by the number of the order
        self._run_id = ""
        self._earlier: dict[str, str] | None = None  # the span of an earlier process
        self._provider: Any = None
        self._tracer: Any = None
        self._run: Any = None
        self._ending = Ending()

    def state_dict(self) -> StateDict:
        """Return the run's id, and its span in this process."""
        return {"run": self._run_id, "span": self._run and _ids_of(self._run)}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue that run, in a span that links to its last one."""
        self._run_id, self._earlier = state["run"], state["span"]

    def on_fleet(self, fleet: Fleet) -> None:
        """Note which clock the run has."""
        self._clock = "wall" if fleet.profiles is None else "virtual"

    def on_start(self, state: RunState) -> None:
        """Begin the span of the run."""
        self._run_id, self._earlier = "", None
        self.on_resume(state)

    def on_resume(self, state: RunState) -> None:
        """Begin another span of a run that resumes."""
        self._ending = Ending()
        self._began = time.time() - state.time
        self._messages = _messages_of(state)
        self._provider = self._open()
        self._tracer = self._provider.get_tracer(_SERVICE, version_of(_SERVICE))
        self._run = self._tracer.start_span(
            "asyncdrop.run",
            context=_nowhere(),
            links=_links_to(self._earlier),
            start_time=self._at(state.time),
            attributes={
                **{f"asyncdrop.config.{n}": v for n, v in self._settings.items()},
                "asyncdrop.seed": state.seed,
                "asyncdrop.resumed_at_update": state.updates,
            },
        )
        self._run_id = self._run_id or _ids_of(self._run)["trace"]
        self._run.set_attributes(self._of_the_run())

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Keep the id of the task's message, the newest one in flight."""
        self._messages[order.number] = next(reversed(state.in_flight))

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Send the span of a task that was merged."""
        attributes: Attributes = {
            "asyncdrop.outcome": "merged",
            "asyncdrop.staleness": merged.staleness,
            "asyncdrop.queued_staleness": merged.queued,
            "asyncdrop.late": merged.late,
            "asyncdrop.bytes_up": merged.reply.num_bytes,
        }
        self._span_of(state, merged.order, attributes).end(self._at(state.time))

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Send the span of a task that was lost."""
        from opentelemetry.trace import Status, StatusCode

        attributes = {"asyncdrop.outcome": "lost", "error.type": kind}
        span = self._span_of(state, order, attributes)
        span.set_status(Status(StatusCode.ERROR, reason))
        span.end(self._at(state.time))

    def on_round(self, state: RunState, number: int) -> None:
        """Forget the tasks that are no longer out, of which no hook was told."""
        self._messages = _messages_of(state)

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Send the span of an evaluation; it takes no virtual time."""
        from opentelemetry.trace import set_span_in_context

        end = evaluation.time if self._clock == "virtual" else state.time
        metrics = list((evaluation.metrics or {}).items())[:_MOST_METRICS]
        self._tracer.start_span(
            "asyncdrop.evaluation",
            context=set_span_in_context(self._run),
            start_time=self._at(evaluation.time),
            attributes={
                **self._of_the_run(),
                "asyncdrop.source": evaluation.source,
                "asyncdrop.round": evaluation.round,
                "asyncdrop.update": evaluation.update,
                **{
                    f"asyncdrop.metric.{name}": value
                    for name, value in metrics
                    if isinstance(value, int | float)
                },
            },
        ).end(self._at(max(end, evaluation.time)))

    def on_interrupt(self, state: RunState) -> None:
        """End the run's span; tasks that are out get theirs when the run resumes."""
        self._finish(state, "interrupted")

    def on_end(self, state: RunState) -> None:
        """Send the spans of tasks that are still out, and that of the run."""
        if self._provider is not None:
            for order in (*state.in_flight.values(), *state.late.values()):
                span = self._span_of(state, order, {"asyncdrop.outcome": "unfinished"})
                span.end(self._at(state.time))
        self._finish(state, self._ending.outcome(state))

    def _finish(self, state: RunState, outcome: Outcome) -> None:
        if self._provider is None:  # it could not begin
            return
        from opentelemetry.trace import Status, StatusCode

        self._run.set_attributes(
            {
                "asyncdrop.outcome": outcome,
                "asyncdrop.updates": state.updates,
                "asyncdrop.failures": sum(state.failures.values()),
                "asyncdrop.bytes_down": state.bytes_down,
                "asyncdrop.bytes_up": state.bytes_up,
            }
        )
        if outcome in ("failed", "ended early"):
            error = sys.exception()
            reason = state.ended or (one_line(error) if error else outcome)
            self._run.set_status(Status(StatusCode.ERROR, reason))
        self._run.end(self._at(state.time))
        self._provider.shutdown()
        self._provider = None

    def _span_of(self, state: RunState, order: Order, attributes: Attributes) -> Any:
        """Return the span of a task that has ended, not ended yet."""
        from opentelemetry.trace import Link, SpanKind

        virtual = {}
        if self._clock == "virtual":
            seconds = state.time - order.timing.dispatched_at
            virtual = {"asyncdrop.virtual_seconds": seconds}
        with self._ids.of(self._messages.pop(order.number, "")):
            return self._tracer.start_span(
                "asyncdrop.task",
                context=_nowhere(),
                kind=SpanKind.CLIENT,
                links=[Link(self._run.get_span_context())],
                start_time=self._at(order.timing.dispatched_at),
                attributes={
                    **self._of_the_run(),
                    **_attributes_of(order),
                    **virtual,
                    **attributes,
                },
            )

    def _of_the_run(self) -> Attributes:
        return {"asyncdrop.run": self._run_id, "asyncdrop.clock": self._clock}

    def _at(self, seconds: float) -> int:
        """Return the real time of a time on the run's clock, in nanoseconds."""
        return round((self._began + seconds) * 1e9)

    def _open(self) -> Any:
        """Return a provider of tracers that is nobody else's."""
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = Resource.create({"service.name": _SERVICE})
        try:
            exporter = self._exporter or _otlp()
            processor = BatchSpanProcessor(PatientExporter(exporter))
        except ConfigError:  # which is a ValueError, and says it all
            raise
        except ValueError as error:
            raise ConfigError(
                f"OpenTelemetry cannot begin ({one_line(error)}): check the "
                "environment variables OTEL_*"
            ) from error
        provider = TracerProvider(
            # The environment's name of the service comes before this package's.
            resource=named.merge(OTELResourceDetector().detect()),
            id_generator=self._ids,
        )
        provider.add_span_processor(processor)
        return provider


def _otlp() -> Any:
    """Return the exporter over HTTP; ConfigError if spans should go another way."""
    for name in _PROTOCOLS:
        if protocol := os.environ.get(name):
            if protocol != _HTTP:
                raise ConfigError(
                    f"{name}={protocol!r} is no way that spans are sent: set "
                    f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL={_HTTP}, and the endpoint to "
                    "that of OTLP over HTTP, whose port is 4318 by default"
                )
            break
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _attributes_of(order: Order) -> Attributes:
    return {
        "asyncdrop.task": order.number,
        "asyncdrop.device": order.device,
        "asyncdrop.node_id": str(order.node_id),  # more than 63 bits
        "asyncdrop.rank": order.rank,
        "asyncdrop.speed_group": speed_group(order, MOST_GROUPS),
        "asyncdrop.round": order.round,
        "asyncdrop.base_version": order.base_version,
        "asyncdrop.compute": order.part.compute,
        "asyncdrop.bytes_down": order.cost.bytes_down,
        **({} if order.part.work is None else {"asyncdrop.work": order.part.work}),
    }


def _messages_of(state: RunState) -> dict[int, str]:
    out = (*state.in_flight.items(), *state.late.items())
    return {order.number: message_id for message_id, order in out}


def _ids_of(span: Any) -> dict[str, str]:
    context = span.get_span_context()
    return {"trace": f"{context.trace_id:032x}", "span": f"{context.span_id:016x}"}


def _links_to(ids: Mapping[str, str] | None) -> list[Any]:
    from opentelemetry.trace import Link, SpanContext

    if not ids:
        return []
    trace, span = (int(ids[name], 16) for name in ("trace", "span"))
    return [Link(SpanContext(trace, span, is_remote=True))]


def _nowhere() -> Any:
    """Return a context in which no other code has begun a span."""
    from opentelemetry.context import Context

    return Context()
