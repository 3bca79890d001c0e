"""The records of a history file, sorted by what they tell."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import fsum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history import SCHEMA, THINNED_SCHEMA
from flwr_asyncdrop.observers.history_lines import Record
from flwr_asyncdrop.observers.history_reading import without_wall
from flwr_asyncdrop.observers.left_out import LeftOut
from flwr_asyncdrop.readable import headline, printable
from flwr_asyncdrop.report.metric import LARGEST, Metric
from flwr_asyncdrop.report.step_metrics import StepMetrics
from flwr_asyncdrop.report.tasks import Columns, Steps, Tasks, Updates

LEVELS = "level-accuracy"
"""The metric of the ready app that has a value for each speed level."""


@dataclass(frozen=True)
class Point:
    """A metric of the global model, in seconds on the run's clock after the start.

    `update` counts the updates merged by then, `num_bytes` the bytes sent and received,
    also of tasks lost or in flight; so do the `joules`, None if they are not counted.
    """

    value: float
    time: float
    update: int
    num_bytes: int
    joules: float | None = None


@dataclass(frozen=True)
class Curve:
    """The headline metric over time: one point or more, in the order of time.

    `source` is who evaluated: ``"server"`` or ``"clients"``. Points are finite, and not
    beyond `LARGEST`; a run `diverged` whose last evaluation has no such value.
    """

    metric: Metric
    source: str
    points: tuple[Point, ...]
    diverged: bool = False

    @property
    def by_server(self) -> bool:
        """Whether the server evaluated the global model, on data of its own."""
        return self.source == "server"

    @property
    def final(self) -> Point:
        """The last point."""
        return self.points[-1]

    @property
    def best(self) -> Point:
        """The first of the best points."""
        return max(self.points, key=lambda point: self.metric.goodness(point.value))

    @property
    def mean(self) -> float:
        """The mean over the time from the first point to the last.

        Between two points the metric moves on a straight line. A single point is it.
        """
        duration = self.final.time - self.points[0].time
        if duration <= 0:
            return self.final.value
        areas = [
            (after.time - before.time) * (before.value + after.value) / 2
            for before, after in pairwise(self.points)
        ]
        return fsum(areas) / duration

    @property
    def counts_energy(self) -> bool:
        """Whether every point has its energy."""
        return all(point.joules is not None for point in self.points)


@dataclass(frozen=True)
class RunLog:
    """A history, one field for each sort of record, in the file's order.

    Of updates and failures it has the numbers, as columns; of a thinned history, of
    every `every`-th. `totals` and `steps` have all of them. `step_metrics` is what the
    aggregator says. `units` is None if the history does not count units, `end` if the
    run was cut off.
    """

    run: Record
    updates: Updates
    failures: Tasks
    totals: LeftOut
    steps: Steps
    step_metrics: StepMetrics
    evaluations: tuple[Record, ...]
    units: Record | None
    end: Record | None
    wall_seconds: float

    @classmethod
    def from_records(cls, records: Iterable[Record], name: str = "the history") -> Self:
        """Sort the records of one history, which an error calls by its `name`.

        DataError without a readable first line.
        """
        merged, failed, steps = Columns(Updates), Columns(Tasks), Columns(Steps)
        totals, step_metrics = LeftOut(), StepMetrics()
        evaluations: list[Record] = []
        only: dict[str, Record] = {}
        seconds = 0.0
        for record in records:
            seconds = max(seconds, record["wall"]["seconds"])
            match record["event"]:
                case "update":
                    merged.add(record)
                    totals.add_update(record)
                    steps.add({**record, "updates": 1})
                case "failure":
                    failed.add(record)
                    totals.add_failure(record)
                case "left-out":
                    totals.add(record)
                    steps.add(record)
                case "step":
                    step_metrics.add(record)
                case "evaluation":
                    evaluations.append(without_wall(record))
                case "config":
                    only["run"] = with_config(only["run"], record)
                case event:
                    if event == "run":
                        check_schema(record, name)
                    only.setdefault(event, record)
        if "run" not in only:
            raise DataError(
                f"{name} has no 'run' record, which is its first line: the file is "
                "empty or its beginning is missing"
            )
        return cls(
            run=only["run"],
            updates=merged.table(),
            failures=failed.table(),
            totals=totals,
            steps=steps.table(),
            step_metrics=step_metrics,
            evaluations=tuple(evaluations),
            units=only.get("units"),
            end=only.get("end"),
            wall_seconds=seconds,
        )

    @classmethod
    def planned(cls, run: Record) -> Self:
        """Return a run that has not begun, from what its first line will say."""
        wall = {"wall": {"seconds": 0.0}}
        return cls.from_records([{"event": "run", "schema": SCHEMA, **run, **wall}])

    def fact(self, name: str) -> Any:
        """Return what the first line, or the run-config in it, says of the run.

        A text is one that can be shown.
        """
        config = self.run.get("config", {})
        found = self.run.get(name, config.get(name.replace("_", "-")))
        return printable(found) if isinstance(found, str) else found

    @property
    def complete(self) -> bool:
        """Whether the run came to its last round, or to the end of its time.

        One that an error has ended did not: it may lack its last evaluation.
        """
        if self.end is None or self.end.get("ended") == "error":
            return False
        limit = self.fact("max_seconds")
        if limit and self.end["time"] >= limit:
            return True
        rounds, in_flight = self.fact("num_rounds"), self.fact("in_flight")
        if rounds is None or in_flight is None:
            return "ended" not in self.end
        return bool(self.end["updates"] >= rounds * min(in_flight, self.devices))

    @property
    def devices(self) -> int:
        """Devices in the fleet, or those that had a task if the history has no size."""
        size = self.fact("devices")
        if size is not None:
            return int(size)
        return len(self.active_devices)

    @cached_property
    def active_devices(self) -> NDArray[np.int64]:
        """The devices that had a task, ascending."""
        return np.union1d(self.updates.device, self.failures.device)

    @cached_property
    def time(self) -> float:
        """Seconds on the run's clock from the start to the last record."""
        ends = (self.end,) if self.end is not None else ()
        times = [float(record["time"]) for record in (*self.evaluations, *ends)]
        return max((*times, self.totals.time), default=0.0)

    @property
    def time_label(self) -> str:
        """The label of an axis that shows the run's time."""
        return "virtual time (s)" if self.fact("clock") == "virtual" else "time (s)"

    @property
    def every(self) -> int:
        """Of how many updates, and of how many failures, there is one; 1 for all."""
        return int(self.run.get("every", 1))

    @property
    def bytes_of_full_models(self) -> int:
        """Bytes of the merged tasks, had every device trained the full model."""
        return 2 * int(self.run["full_bytes"]) * self.totals.updates

    @property
    def share_saved(self) -> float | None:
        """Share of the full models' bytes that was not sent; None without updates."""
        sent = self.totals.bytes_down + self.totals.bytes_up
        full = self.bytes_of_full_models
        return 1 - sent / full if full else None

    @property
    def joules(self) -> float | None:
        """Energy of all tasks, in a run that is cut off up to its last evaluation.

        None if it is not counted.
        """
        lines = self.evaluations if self.end is None else (self.end,)
        return _joules(lines[-1]) if lines else None

    @property
    def level_evaluations(self) -> list[Record]:
        """The evaluations that tell the speed levels apart.

        There are none if a metric of that name is no list of numbers, of as many in
        each.
        """
        lines = [line for line in self.evaluations if LEVELS in line["metrics"]]
        found = [line["metrics"][LEVELS] for line in lines]
        alike = all(map(_are_numbers, found)) and len({*map(len, found)}) == 1
        return lines if alike else []

    @cached_property
    def curve(self) -> Curve | None:
        """The headline metric as the server measured it, else the clients."""
        for source in ("server", "clients"):
            lines = [line for line in self.evaluations if line["source"] == source]
            name = _headline_of(lines)
            points = () if name is None else _points(lines, name)
            if name is not None and points:
                diverged = _value(lines[-1], name) is None
                metric = Metric.of(name, [point.value for point in points])
                return Curve(metric, source, points, diverged)
        return None


def with_config(first: Record, changed: Record) -> Record:
    """Return a first line with what a ``config`` line says is another from there on."""
    return {**first, "config": {**first["config"], **changed["config"]}}


def check_schema(run: Record, name: str) -> None:
    """Raise a DataError, with a history's name, for a version that cannot be read."""
    if run["schema"] not in (SCHEMA, THINNED_SCHEMA):
        raise DataError(
            f"{name} has schema {run['schema']}, but this version reads "
            f"{SCHEMA}: do the run again, or read it with the version that wrote it"
        )


def _headline_of(evaluations: Iterable[Record]) -> str | None:
    """Return the headline metric of all that some evaluations have a number of.

    A single one may lack it: the first accuracy may be NaN, or come late.
    """
    numbers: dict[str, object] = {}
    for line in evaluations:
        numbers |= {
            name: value
            for name, value in line["metrics"].items()
            if name not in numbers and headline({name: value})
        }
    metric = headline(numbers)
    return None if metric is None else metric[0]


def _points(evaluations: Iterable[Record], name: str) -> tuple[Point, ...]:
    points = []
    for line in evaluations:
        value = _value(line, name)
        if value is not None:
            point = Point(
                value=value,
                time=line["time"],
                update=line["update"],
                num_bytes=line["bytes_down"] + line["bytes_up"],
                joules=_joules(line),
            )
            points.append(point)
    return tuple(points)


def _value(evaluation: Record, name: str) -> float | None:
    """Return a metric of an evaluation; None if it has none that can be drawn."""
    metric = headline({name: evaluation["metrics"].get(name)})
    return None if metric is None or abs(metric[1]) > LARGEST else metric[1]


def _are_numbers(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(each is None or isinstance(each, int | float) for each in value)


def joules_of(point: Point) -> float:
    """Return the energy of a point of a curve that counts it."""
    return point.joules or 0.0


def _joules(line: Record) -> float | None:
    joules = line.get("joules")
    return None if joules is None else float(joules)


def column(records: Sequence[Record], key: str) -> NDArray[np.float64]:
    """Return one field of all records, shape ``(len(records),)``."""
    return np.array([record[key] for record in records], dtype=np.float64)
