"""What is counted and measured as it happens."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
)

_VERSIONS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Instruments:
    """The counters, histograms and gauges of one run, in a registry of their own.

    A run in the same process has others, and none of them is in the registry that
    the process may have for itself. All may be read while they change. The memory and
    the CPU time of the process are there too.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        tier, reason, source = ["tier"], ["reason"], ["source"]
        self.run = Info("asyncdrop_run", "The run and its versions", registry=registry)
        self.tasks = Counter(
            "asyncdrop_tasks", "Tasks sent to devices", tier, registry=registry
        )
        self.updates = Counter(
            "asyncdrop_updates", "Updates merged", tier, registry=registry
        )
        self.late_updates = Counter(
            "asyncdrop_late_updates",
            "Updates merged after their deadline",
            tier,
            registry=registry,
        )
        self.failures = Counter(
            "asyncdrop_failures", "Tasks lost", reason, registry=registry
        )
        self.sent = Counter(
            "asyncdrop_sent_bytes", "Bytes of weights sent", tier, registry=registry
        )
        self.received = Counter(
            "asyncdrop_received_bytes",
            "Bytes of weights received",
            tier,
            registry=registry,
        )
        self.staleness = Histogram(
            "asyncdrop_staleness_versions",
            "Versions of the model between dispatch and merge",
            tier,
            buckets=_VERSIONS,
            registry=registry,
        )
        self.queued = Counter(
            "asyncdrop_queued_staleness_versions",
            "Staleness that came while tasks waited on their devices, behind others",
            tier,
            registry=registry,
        )
        self.task_seconds = Histogram(
            "asyncdrop_task_duration_seconds",
            "From dispatch to merge, on the run's clock",
            tier,
            buckets=_SECONDS,
            registry=registry,
        )
        self.lr_factor = Gauge(
            "asyncdrop_learning_rate_factor",
            "What the schedule has made of the learning rate",
            registry=registry,
        )
        self.round = Gauge(
            "asyncdrop_round", "The last round that is complete", registry=registry
        )
        self.evaluation = Gauge(
            "asyncdrop_evaluation",
            "What the last evaluation of the global model found",
            [*source, "metric"],
            registry=registry,
        )
        self.evaluated_round = Gauge(
            "asyncdrop_evaluation_round",
            "The round of that model",
            source,
            registry=registry,
        )

    def expect_tiers(self, count: int) -> None:
        """Begin at 0 for every tier: Prometheus sees no rise to a first value."""
        for metric in (
            self.tasks,
            self.updates,
            self.late_updates,
            self.sent,
            self.received,
            self.staleness,
            self.queued,
            self.task_seconds,
        ):
            for tier in range(count):
                metric.labels(tier)
