"""What all trackers have in common: which points there are, and when."""

import logging
import platform
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar, ParamSpec, TypeVar

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.outcomes import Ending, Outcome
from flwr_asyncdrop.observers.trackers.round_means import RoundMeans
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.timed_call import TimedCall
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.versions import version_of

logger = logging.getLogger("flwr.asyncdrop")

P = ParamSpec("P")
T = TypeVar("T")
Setting = bool | int | float | str

_MOST_EVALUATED = 32
_PACKAGES = ("flwr-asyncdrop", "flwr", "torch")


class Tracker(Callback):
    """Writes the points of a run to a tool that keeps and draws them.

    The step of a point is the number of updates. Its time is the real time at which
    the run began plus the seconds on the run's clock, so that a tool's axis of
    relative time is the run's clock, virtual or not. A tracker that fails, or that does
    not return for `patience` seconds, says so in one warning, writes nothing more, and
    the run continues. Each call is made in a thread.

    ==============================  ==================================================
    at the start                    the settings and versions
    at each evaluation              ``SOURCE/METRIC``; the source is ``server`` or
                                    ``clients``
    at the end of each round        ``train/METRIC``, means over the round's updates;
                                    ``aggregator/METRIC``, means over its steps;
                                    ``round/staleness`` (mean), ``round/late``,
                                    ``round/failures``; ``total/bytes_down``,
                                    ``total/bytes_up``, ``total/failures``,
                                    ``total/seconds`` (the run's clock),
                                    ``total/rounds``
    at the end                      ``updates``, ``seconds``, ``bytes_down``,
                                    ``bytes_up``, ``failures``, and how it ended
    ==============================  ==================================================

    Others choose names: there are at most 32 of ``train``, of ``aggregator``, and of
    evaluations.

    Parameters
    ----------
    settings : mapping of str to bool, int, float or str
        What the tool shows as the run's parameters, beside seed and versions.
    """

    tool: ClassVar[str]
    patience: ClassVar[float] = 120.0

    def __init__(self, settings: Mapping[str, Setting] | None = None) -> None:
        self._settings = dict(settings or {})
        self._broken = False
        self._place: StateDict = {}
        self._is_new = True
        self._begun = False
        self._began = 0.0
        self._round = RoundMeans()
        self._evaluated: set[str] = set()
        self._ending = Ending()

    def check(self) -> None:
        """Raise a ConfigError if a run must not begin here; change nothing."""

    @abstractmethod
    def begin(self, settings: Mapping[str, Setting], began: float) -> StateDict:
        """Begin a run at this real time; return what `resume` needs of it."""

    @abstractmethod
    def resume(self, place: StateDict, update: int, began: float) -> StateDict:
        """Continue a run that has done `update` updates, without double points."""

    @abstractmethod
    def write(self, values: Mapping[str, float], update: int, at: float) -> None:
        """Write points at a step and a real time."""

    @abstractmethod
    def finish(
        self, summary: Mapping[str, float], update: int, at: float, outcome: Outcome
    ) -> None:
        """Write what the run came to, and let go of it."""

    def release(self) -> None:
        """Let go of a run that gets no more points; nothing by default."""

    def where(self, place: StateDict) -> StateDict:
        """Return what `resume` needs, as it is after a write."""
        return place

    def state_dict(self) -> StateDict:
        """Return where the points go, and the round that is not full yet."""
        return {
            "place": self._place,
            "began": self._began,
            "round": self._round.state_dict(),
            "evaluated": sorted(self._evaluated),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from there."""
        self._place = dict(state["place"])
        self._began = state["began"]
        self._round = RoundMeans.from_state(state["round"])
        self._evaluated = set(state["evaluated"])

    def on_start(self, state: RunState) -> None:
        """Look whether the run may begin."""
        self._is_new, self._begun, self._broken = True, False, False
        self._ending = Ending()
        self._round, self._evaluated = RoundMeans(), set()
        self._began = time.time() - state.time
        self._guard(self.check)

    def on_resume(self, state: RunState) -> None:
        """Continue the run that the checkpoint knows, or begin one."""
        if not self._place:
            self.on_start(state)
            return
        self._is_new, self._begun, self._broken = False, False, False
        self._ending = Ending()

    def on_begin(self, state: RunState) -> None:
        """Begin the run, or continue it."""
        self._begun = True
        if self._is_new:
            settings = {**self._settings, "seed": state.seed, **_versions()}
            self._at_place(self.begin, settings, self._began)
        else:
            self._at_place(self.resume, self._place, state.updates, self._began)

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Add the update to its round."""
        self._round.add(merged)

    def on_step(self, state: RunState, metrics: Mapping[str, float]) -> None:
        """Add the step to its round."""
        self._round.add_step(metrics)

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Count the failure."""
        self._round.failures += 1

    def on_round(self, state: RunState, number: int) -> None:
        """Write what the round came to."""
        values = {
            **self._round.values(),
            **{f"total/{name}": value for name, value in _totals(state).items()},
            "total/rounds": number,
        }
        self._round = RoundMeans()
        self._at_place(self._points, values, state.updates, self._began + state.time)

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Write the numbers that it found, where the model was that it is of."""
        values = {}
        for name, value in (evaluation.metrics or {}).items():
            key = f"{evaluation.source}/{name}"
            shown = key in self._evaluated or len(self._evaluated) < _MOST_EVALUATED
            if shown and isinstance(value, int | float):
                self._evaluated.add(key)
                values[key] = float(value)
        at = self._began + evaluation.time
        self._at_place(self._points, values, evaluation.update, at)

    def on_interrupt(self, state: RunState) -> None:
        """Let go of the run, which can be resumed."""
        self._finish(state, "interrupted")

    def on_end(self, state: RunState) -> None:
        """Write the summary."""
        self._finish(state, self._ending.outcome(state))

    def _points(self, values: Mapping[str, float], update: int, at: float) -> StateDict:
        self.write(values, update, at)
        return self.where(self._place)

    def _at_place(
        self, call: Callable[P, StateDict], *args: P.args, **options: P.kwargs
    ) -> None:
        """Call, and note the place that it returns: one that fails changes no place."""
        place = self._guard(call, *args, **options)
        if place is not None:
            self._place = place

    def _finish(self, state: RunState, outcome: Outcome) -> None:
        if not self._begun:  # another callback has refused the run
            return
        summary = {"updates": float(state.updates), **_totals(state)}
        at = self._began + state.time
        # A run that resumes goes on from its last point, without this end.
        self._guard(self.finish, summary, state.updates, at, outcome)
        self._broken = True  # it is over

    def _guard(
        self, call: Callable[P, T], *args: P.args, **options: P.kwargs
    ) -> T | None:
        """Call; whatever goes wrong is a warning, and the end of the tracking.

        So is a call that does not return in time. Return None then.
        """
        if self._broken:
            return None
        try:
            return TimedCall(partial(call, *args, **options)).result(self.patience)
        except ConfigError:
            raise
        except Exception as error:  # of a disk, a network, a server, a library
            self._broken = True
            logger.warning(
                "%s gets no more points (%s), and the run continues",
                self.tool,
                one_line(error),
            )
            if not isinstance(error, TimeoutError):
                with suppress(Exception):
                    TimedCall(self.release).result(self.patience)
        except BaseException:  # a second signal: the end waits for no tool
            self._broken = True
            raise
        return None


def _totals(state: RunState) -> dict[str, float]:
    return {
        "seconds": state.time,
        "bytes_down": float(state.bytes_down),
        "bytes_up": float(state.bytes_up),
        "failures": float(sum(state.failures.values())),
    }


def _versions() -> dict[str, str]:
    names = {name: version_of(name) for name in _PACKAGES}
    return {**names, "python": platform.python_version()}
