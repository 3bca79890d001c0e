"""Writes a history while the run goes on."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.observers.history.reading import SCHEMA, Record
from flwr_asyncdrop.observers.unit_counts import UnitCounts
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict

_WALL_PREFIX = "wall-"


class HistoryWriter(Callback):
    """Writes ``history.jsonl`` while the run goes on.

    An evaluation ends whenever its thread is done, but its line always stands where
    it was asked for: lines behind it wait for it. A line that still lacks what was
    measured has no ``wall``.

    Parameters
    ----------
    path : Path
        The file; its folder is made, an old file is replaced.
    run : mapping of str to JSON values
        What the first line says about the run.
    machine : mapping of str to JSON values
        What the first line says under ``wall``.
    timer : callable
        Source of monotonic seconds, for ``wall``.

    Attributes
    ----------
    ended_early : bool
        Whether the run is over though it has not done all its rounds.
    """

    def __init__(
        self,
        path: Path,
        run: Mapping[str, object] | None = None,
        machine: Mapping[str, object] | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.files = (path,)
        self._run = dict(run or {})
        self._machine = dict(machine or {})
        self._timer = timer
        self._start = timer()
        self._file: IO[bytes] | None = None
        self._num_bytes = 0
        self._lines: list[Record] = []
        self._units = UnitCounts()
        self.ended_early = False

    def on_start(self, state: RunState) -> None:
        """Open the file and write the first line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("wb")
        self._start = self._timer()
        self._add(
            {
                "event": "run",
                "schema": SCHEMA,
                "seed": state.seed,
                "devices": state.num_devices,
                "full_bytes": wire.array_bytes(wire.to_record(state.arrays)),
                **self._run,
            },
            self._machine,
        )

    def state_dict(self) -> StateDict:
        """Return how far it is, and what waits for an evaluation."""
        return {
            "num_bytes": self._num_bytes if self._file is None else self._file.tell(),
            "seconds": self._timer() - self._start,
            "lines": list(self._lines),
            "units": self._units.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from there: what the file has beyond it will be written again.

        Raises
        ------
        CheckpointError
            If the file is missing or too short.
        """
        self._num_bytes = state["num_bytes"]
        length = self.path.stat().st_size if self.path.exists() else 0
        if length < self._num_bytes:
            raise CheckpointError(
                f"the history {self.path} has {length} bytes, and the checkpoint knows "
                f"of {self._num_bytes}: it is of another run; start the run again "
                "without resume"
            )
        self._start = self._timer() - state["seconds"]
        self._lines = list(state["lines"])
        self._units.load_state_dict(state["units"])

    def on_resume(self, state: RunState) -> None:
        """Open the file at the place that was saved."""
        self._file = self.path.open("r+b")
        self._file.truncate(self._num_bytes)
        self._file.seek(self._num_bytes)

    def on_interrupt(self, state: RunState) -> None:
        """Close the file without an end."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Write an ``update`` line."""
        order, cost = merged.order, merged.order.cost
        self._units.add(order)
        metrics = wire.flat_metrics(merged.reply.metrics)
        self._add(
            {
                "event": "update",
                "update": state.updates,
                "round": merged.round,
                "time": state.time,
                "device": order.device,
                "rank": order.rank,
                "dispatched_at": order.timing.dispatched_at,
                "staleness": merged.staleness,
                "version": state.version,
                "bytes_down": cost.bytes_down,
                "bytes_up": merged.reply.num_bytes,
                "compute": cost.compute,
                "in_flight": len(state.in_flight),
                **({"late": True} if merged.late else {}),
                **({"queued": merged.queued} if merged.queued else {}),
            },
            metrics=metrics,
        )

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Write a ``failure`` line."""
        self._add(
            {
                "event": "failure",
                "time": state.time,
                "device": order.device,
                "rank": order.rank,
                "dispatched_at": order.timing.dispatched_at,
                "kind": kind,
                "reason": reason,
            }
        )

    def on_evaluation_due(self, state: RunState, source: str, number: int) -> None:
        """Keep the place of an ``evaluation`` line."""
        self._lines.append(
            {
                "event": "evaluation",
                "source": source,
                "round": number,
                "update": state.updates,
                "time": state.time,
                "bytes_down": state.bytes_down,
                "bytes_up": state.bytes_up,
            }
        )

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Fill the place that was kept."""
        at, line = next(
            (at, line)
            for at, line in enumerate(self._lines)
            if "wall" not in line
            and (line["source"], line["round"]) == (evaluation.source, evaluation.round)
        )
        if evaluation.metrics is None:
            del self._lines[at]
        else:
            line = {**line, "update": evaluation.update, "time": evaluation.time}
            self._lines[at] = self._stamped(line, {}, dict(evaluation.metrics))
        self._flush()

    def on_end(self, state: RunState) -> None:
        """Write the last lines and close the file."""
        if self._file is None:
            return
        self.ended_early = bool(state.ended)
        self._lines = [line for line in self._lines if "wall" in line]
        if (units := self._units.record()) is not None:
            self._add({"event": "units", **units})
        self._add(
            {
                "event": "end",
                "updates": state.updates,
                "time": state.time,
                "bytes_down": state.bytes_down,
                "bytes_up": state.bytes_up,
                "failures": state.failures,
                **({"duplicates": state.duplicates} if state.duplicates else {}),
                **({"ended": state.ended} if state.ended else {}),
            }
        )
        self._file.close()
        self._file = None

    def _add(
        self,
        record: Record,
        wall: Mapping[str, object] | None = None,
        metrics: Mapping[str, object] | None = None,
    ) -> None:
        self._lines.append(self._stamped(record, wall or {}, metrics))
        self._flush()

    def _stamped(
        self,
        record: Record,
        wall: Mapping[str, object],
        metrics: Mapping[str, object] | None,
    ) -> Record:
        """Part the metrics that depend on the machine from those that do not."""
        measured: dict[str, Any] = {"seconds": self._timer() - self._start, **wall}
        if metrics is not None:
            record["metrics"] = {}
            for name, value in metrics.items():
                if name.startswith(_WALL_PREFIX):
                    measured[name.removeprefix(_WALL_PREFIX)] = value
                else:
                    record["metrics"][name] = value
        return {**record, "wall": measured}

    def _flush(self) -> None:
        """Write all lines in front of the first place that is still kept."""
        ready = 0
        while ready < len(self._lines) and "wall" in self._lines[ready]:
            ready += 1
        if self._file is not None and ready:
            text = "".join(f"{json.dumps(line)}\n" for line in self._lines[:ready])
            self._file.write(text.encode())
            self._file.flush()
            del self._lines[:ready]
