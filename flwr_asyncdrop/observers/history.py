"""The record of a run: one JSON object per line, in the same order every time.

======================  ==========================================================
``event``               fields beside ``event`` and ``wall``
======================  ==========================================================
``run`` (first line)    ``schema``, ``seed``, ``devices``, ``full_bytes`` (the full
                        model on the wire) and what the caller adds; ``clock``,
                        ``"virtual"`` or ``"wall"``, if the caller does not say it
``update``              ``update`` (count, from 1), ``round``, ``time``, ``device``,
                        ``rank``, ``dispatched_at``, ``staleness``, ``version``,
                        ``bytes_down``, ``bytes_up``, ``compute``, ``in_flight``,
                        ``metrics``; ``work``, the share of the usual local steps that
                        it was asked for, if there is a work policy; ``codec``, if it
                        was coded; ``late``, if it came after its deadline;
                        ``queued``, versions of the staleness that came while it
                        waited behind another task of its device, if any did
``left-out``            only of a thinned history: what it has left out since the
                        line before, as sums: `LeftOut`
``step``                ``version``, ``update`` (how many are merged), ``time`` and
                        ``metrics``, what the aggregator says of a step; it stands
                        before the update with which the step was taken
``failure``             ``time``, ``device``, ``rank``, ``dispatched_at``, ``kind``,
                        ``reason``
``evaluation``          ``source``, ``round``, ``update``, ``time``,
                        ``bytes_down``, ``bytes_up``, ``joules`` (of all tasks up to
                        then, lost ones too), ``metrics``
``units``               how often each rank trained each unit, see
                        `UnitCounts.record`; absent if no submodel was trained
``config``              only where a run resumed with another one: ``config``, what
                        of it is another from here on
``end`` (last line)     ``updates``, ``time``, ``bytes_down``, ``bytes_up``,
                        ``joules``, ``failures``; ``duplicates``, replies that came
                        twice, if any did; ``ended``, why, if it ended early
======================  ==========================================================

With ``every`` in its first line, and schema 3, a history is thinned: of that many
``update`` lines, of that many ``failure`` lines, and of the lines of that many steps,
it has the first.

Times are seconds on the run's clock; ``joules`` are there if profiles of the fleet have
energy. A number that JSON does not have, NaN or infinity, is null. Whatever depends on
the machine stands under ``wall``: the real ``seconds`` since the start, metrics whose
name begins with ``wall-``, and in the first line the ``run``, an id that no other run
has. Under the virtual clock everything else is a function of the configuration and the
seed, bit for bit.
"""

import logging
import time
from collections.abc import Callable, Mapping
from uuid import uuid4

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.history_file import HistoryFile
from flwr_asyncdrop.observers.history_lines import (
    Record,
    config_line,
    due_line,
    end_line,
    failure_line,
    step_line,
    update_line,
)
from flwr_asyncdrop.observers.left_out import LeftOut
from flwr_asyncdrop.observers.outcomes import Ending
from flwr_asyncdrop.observers.unit_counts import UnitCounts
from flwr_asyncdrop.parameters import A_SWITCH, whole_from
from flwr_asyncdrop.paths import AnyPath, as_path
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict

logger = logging.getLogger("flwr.asyncdrop")

SCHEMA = 2
"""Version of what the lines hold."""

THINNED_SCHEMA = 3
"""That of a history that leaves lines out: who cannot add sums must not read it."""

_WALL_PREFIX = "wall-"


class HistoryWriter(Callback):
    """Writes ``history.jsonl`` during the run.

    The line of an evaluation stands where the evaluation was asked for: the lines
    behind it wait until it has ended. Lines that the disk does not take are kept and
    tried again with the next ones.

    Parameters
    ----------
    path : str or Path
        The file; its folder is made. Nobody else may be writing it.
    run : mapping of str to JSON values
        What the first line says about the run.
    machine : mapping of str to JSON values
        What the first line says under ``wall``.
    timer : callable
        Source of monotonic seconds, for ``wall``.
    overwrite : bool
        Whether a run that begins may replace a file that is there already.
    every : int
        Of so many updates, of so many failures, and of so many steps, one has a line of
        its own, the first. Sums of the other updates and failures stand before the next
        line of this sort, and at the end: every total of a report stays exact.
        Evaluations keep all their lines.

    Raises
    ------
    ConfigError
        If `every` is no whole number from 1 on.

    Attributes
    ----------
    ended_early : bool
        Whether the run is over though it has not done all its rounds.
    """

    def __init__(
        self,
        path: AnyPath,
        run: Mapping[str, object] | None = None,
        machine: Mapping[str, object] | None = None,
        timer: Callable[[], float] = time.monotonic,
        *,
        overwrite: bool = False,
        every: int = 1,
    ) -> None:
        self.path = as_path("path", path).absolute()
        self.files = (self.path,)
        self.ended_early = False
        self._run = run or {}
        self._machine = machine or {}
        self._timer = timer
        self._start = timer()
        self._overwrite = A_SWITCH.check("overwrite", overwrite)
        self._file = HistoryFile(self.path)
        self._warned = False
        # Not written yet: from the first evaluation on that has not ended. Its line,
        # and only such a line, has no "wall".
        self._lines: list[Record] = []
        self._every = whole_from(1).check("every", every)
        self._units, self._left_out = UnitCounts(), LeftOut()
        self._clock: dict[str, object] = {}
        self._ending: Ending
        self._config_before: Mapping[str, object] | None = None

    def on_fleet(self, fleet: Fleet) -> None:
        """Note which clock the run is on: times of two clocks cannot be compared."""
        config = self._run.get("config")
        if not (isinstance(config, Mapping) and "clock" in config):
            self._clock = {"clock": "wall" if fleet.profiles is None else "virtual"}

    def on_start(self, state: RunState) -> None:
        """Open the file, and keep the first line until the run begins."""
        self._file.begin(overwrite=self._overwrite)
        # There may have been a run before.
        self.ended_early, self._warned = False, False
        self._units, self._left_out = UnitCounts(), LeftOut()
        self._ending = Ending()
        self._start = self._timer()
        first = self._stamped(
            {
                "event": "run",
                "schema": SCHEMA if self._every == 1 else THINNED_SCHEMA,
                "seed": state.seed,
                "devices": state.num_devices,
                "full_bytes": wire.array_bytes(wire.to_record(state.served)),
                **({"every": self._every} if self._every > 1 else {}),
                **self._clock,
                **self._run,
            },
            {"run": uuid4().hex, **self._machine},
        )
        self._lines = [first]

    def state_dict(self) -> StateDict:
        """Return the length and digest of the file, and the lines that wait."""
        return {
            "num_bytes": self._file.num_bytes,
            "sha256": self._file.sha256,
            "seconds": self._timer() - self._start,
            "lines": list(self._lines),
            "units": self._units.state_dict(),
            "every": self._every,
            "config": self._run.get("config"),
            "left_out": self._left_out.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from there; what the file has beyond it will be written again.

        CheckpointError if what the file has up to there is something else, or if it was
        thinned in another way.
        """
        every = state.get("every", 1)  # versions before this one left nothing out
        if every != self._every:
            raise CheckpointError(
                f"the history {self.path} was begun with every={every} and is not "
                f"resumed with every={self._every}: history-every must stay {every}"
            )
        self._file.verify(state["num_bytes"], state["sha256"])
        self._start = self._timer() - state["seconds"]
        self._lines = list(state["lines"])
        self._units.load_state_dict(state["units"])
        if "left_out" in state:
            self._left_out = LeftOut.from_state(state["left_out"])
        self._config_before = state.get("config")

    def on_resume(self, state: RunState) -> None:
        """Open the file, which must begin as it was saved."""
        self._file.resume()
        self._ending = Ending()
        if line := config_line(self._config_before, self._run.get("config")):
            self._lines.append(self._stamped(line))

    def on_begin(self, state: RunState) -> None:
        """Write the first line of a file that was replaced, or cut it off."""
        self._file.cut()
        self._write()

    def on_interrupt(self, state: RunState) -> None:
        """Close the file without an end."""
        self.close()

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Write an ``update`` line, or leave it out."""
        self._units.add(merged.order)
        line = update_line(state, merged)
        if (state.updates - 1) % self._every:
            self._left_out.add_update(line)
            return
        self._add_left_out()
        self._add(line, metrics=wire.flat_metrics(merged.reply.metrics))

    def on_step(self, state: RunState, metrics: Mapping[str, float]) -> None:
        """Write a ``step`` line, or leave it out."""
        if (state.version - 1) % self._every == 0:
            self._add(step_line(state), metrics=metrics)

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Write a ``failure`` line, or leave it out."""
        line = failure_line(state, order, kind, reason)
        if (sum(state.failures.values()) - 1) % self._every:
            self._left_out.add_failure(line)
            return
        self._add_left_out()
        self._add(line)

    def _add_left_out(self) -> None:
        if self._left_out:
            self._add(self._left_out.line())
            self._left_out = LeftOut()

    def on_evaluation_due(self, state: RunState, source: str, number: int) -> None:
        """Keep the place of an ``evaluation`` line."""
        self._lines.append(due_line(state, source, number))

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
            self._lines[at] = self._stamped(line, metrics=evaluation.metrics)
        self._write()

    def on_end(self, state: RunState) -> None:
        """Write the last lines and close the file."""
        if not self._file.is_open:
            self.close()
            return
        self.ended_early = bool(state.ended)
        self._lines = [line for line in self._lines if "wall" in line]
        self._add_left_out()
        if (units := self._units.record()) is not None:
            self._add({"event": "units", **units})
        self._add(end_line(state, self._ending.outcome(state)))
        if not self._lines:
            self.close()
            return
        logger.warning(
            "%s lacks its end, %s: HistoryWriter.flush() tries again",
            self.path,
            counted(len(self._lines), "line"),
        )

    def flush(self) -> None:
        """Write all lines in front of the first place that is still kept.

        An OSError leaves the file with whole lines; those that are not in it are kept.
        """
        waiting = (at for at, line in enumerate(self._lines) if "wall" not in line)
        ready = next(waiting, len(self._lines))
        if ready and self._file.is_open:
            self._file.write(self._lines[:ready])
            del self._lines[:ready]

    def close(self) -> None:
        """Close the file, and let others write it."""
        self._file.close()

    def _add(
        self,
        record: Record,
        wall: Mapping[str, object] | None = None,
        metrics: Mapping[str, object] | None = None,
    ) -> None:
        self._lines.append(self._stamped(record, wall, metrics))
        self._write()

    def _stamped(
        self,
        record: Record,
        wall: Mapping[str, object] | None = None,
        metrics: Mapping[str, object] | None = None,
    ) -> Record:
        """Return a line with its metrics, and with ``wall``."""
        measured = {"seconds": self._timer() - self._start, **(wall or {})}
        if metrics is not None:
            record["metrics"] = {}
            for name, value in metrics.items():
                short = name.removeprefix(_WALL_PREFIX)
                # A device's "wall-seconds" is no time of this run.
                if short == name or short in measured:
                    record["metrics"][name] = value
                else:
                    measured[short] = value
        return {**record, "wall": measured}

    def _write(self) -> None:
        """Flush, or warn: the run is worth more than its record."""
        try:
            self.flush()
        except OSError as error:
            if not self._warned:
                logger.warning(
                    "cannot write %s: %s; the run continues and keeps its lines",
                    self.path,
                    error.strerror,
                )
            self._warned = True
        else:
            self._warned = False
