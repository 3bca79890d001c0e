"""A history that somebody else is writing, as the progress of a run."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flwr_asyncdrop.cli.events import RunProgress, thinned
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history_lines import Record
from flwr_asyncdrop.observers.left_out import LeftOut
from flwr_asyncdrop.readable import headline, one_line, printable
from flwr_asyncdrop.report import Summary
from flwr_asyncdrop.report.files import HISTORY
from flwr_asyncdrop.report.reading import LineOrder
from flwr_asyncdrop.report.runlog import RunLog, check_schema, with_config
from flwr_asyncdrop.report.series import named


@dataclass(frozen=True)
class WatchedRun:
    """What is known of a run from the first line of its history.

    The history of a project of its own may not say what is run, which then has the
    name of its folder, or when the run ends: `num_updates` and `max_seconds` are 0.
    """

    name: str
    folder: Path
    num_updates: int
    max_seconds: float
    first: Record

    @classmethod
    def of(cls, folder: Path, first: Record) -> Self:
        """Read the first line; DataError if it is of another version."""
        check_schema(first, f"the history in {folder}")
        facts = {**first.get("config", {}), **first}
        facts = {name.replace("-", "_"): value for name, value in facts.items()}
        label = facts.get("algorithm") or named(folder / HISTORY)[0]
        name = f"{label} seed {facts['seed']}"
        num_updates = 0
        rounds, in_flight = facts.get("num_rounds"), facts.get("in_flight")
        if rounds is not None and in_flight is not None:
            num_updates = int(rounds) * min(in_flight, facts["devices"])
        seconds = float(facts.get("max_seconds") or 0.0)
        return cls(printable(name), folder, num_updates, seconds, first)


class Tail:
    """The whole lines of a file as they come, from its beginning.

    A run that resumes cuts the file off and goes on from there: lines then come anew.
    That is known by the last line that was read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = self._end = 0  # of the last line that was read
        self._last = b""

    def read(self, begin_anew: Callable[[], object]) -> Iterator[bytes]:
        """Yield the lines since the last time, after `begin_anew` if they come anew."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._begin)
            if file.read(len(self._last)) != self._last:
                self._begin = self._end = 0
                self._last = b""
                begin_anew()
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._begin, self._end = self._end, self._end + len(line)
                self._last = line
                yield line


class Followed:
    """How far the run is that writes a history.

    Parameters
    ----------
    folder : Path
        The run's, with its ``history.jsonl``, which may not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run: WatchedRun | None = None
        self._tail = Tail(folder / HISTORY)
        self._forget()

    def _forget(self) -> None:
        self.has_ended = False
        self.cut_off = ""  # why it did not do all its rounds, as of `Summary`
        self._order = LineOrder()
        self._totals = LeftOut()
        self._time = 0.0
        self._bytes = 0
        self._in_flight: tuple[int, ...] = ()
        self._source = ""
        self._metric: tuple[str, float] | None = None
        self._values: list[float] = []

    def look(self) -> bool:
        """Read what is new; return whether there was anything.

        DataError if it is no history.
        """
        is_news = False
        for line in self._tail.read(self._forget):
            is_news = True
            try:
                self._take(json.loads(line.decode()))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise DataError(
                    f"the history in {self.folder} is damaged ({one_line(error)}): do "
                    "the run again"
                ) from None
        return is_news

    @property
    def progress(self) -> RunProgress:
        """How far it is."""
        return RunProgress(
            updates=self._totals.updates,
            time=self._time,
            metric=self._metric,
            lost=sum(self._totals.failures.values()),
            curve=thinned(self._values),
            in_flight=self._in_flight,
            num_bytes=self._bytes,
        )

    def _take(self, record: Record) -> None:
        if self.run is None and record["event"] != "run":
            raise ValueError("it does not begin with its first line")
        self._order.check(record)
        totals = self._totals
        self._time = max(self._time, record.get("time") or 0.0)
        match record["event"]:
            case "run":
                self.run = WatchedRun.of(self.folder, record)
            case "config" if self.run is not None:
                first = with_config(self.run.first, record)
                self.run = WatchedRun.of(self.folder, first)
            case "update":
                totals.add_update(record)
                self._bytes += record["bytes_down"] + record["bytes_up"]
                # The slot of the update is taken again at once.
                self._in_flight = (record["in_flight"] + 1,)
            case "failure":
                totals.add_failure(record)
            case "left-out":
                totals.add(record)
                self._bytes += record["bytes_down"] + record["bytes_up"]
            case "evaluation":
                self._bytes = record["bytes_down"] + record["bytes_up"]
                self._evaluated(record)
            case "end" if self.run is not None:
                self._bytes = record["bytes_down"] + record["bytes_up"]
                self._in_flight = ()
                self.has_ended = True
                log = RunLog.from_records([self.run.first, record])
                self.cut_off = Summary(log).cut_off

    def _evaluated(self, record: Record) -> None:
        """Keep the metric, the server's if it evaluates."""
        found, source = headline(record["metrics"]), record["source"]
        if found is None or (self._source == "server" and source != "server"):
            return
        if source != self._source:
            self._source = source
            self._values.clear()
        self._metric = printable(found[0]), found[1]
        self._values.append(found[1])
