"""What a user's own strategy, its functions and callbacks keep from event to event."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import count
from types import FunctionType, MethodType
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.completeness.digests import UNKNOWN, digest
from flwr_asyncdrop.completeness.kept import held_by, is_users
from flwr_asyncdrop.completeness.loaded_models import LoadedModels
from flwr_asyncdrop.completeness.opaque import Opaque, Shapes
from flwr_asyncdrop.server.callbacks import CALLBACK_PART, Callback, Evaluation
from flwr_asyncdrop.server.server_evaluator import EvaluateFn, ServerEvaluator
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict, Stateful, load_saved, state_to_save

logger = logging.getLogger("flwr.asyncdrop")

Digests = Mapping[str, str]
"""What an object keeps: digests by name."""

_GONE = "gone"  # the digest of what is not there
_EVALUATE = "evaluate_fn"
_MOST_NAMES = 3


class OwnState(Callback):
    """Saves what a user's own objects around a run keep, and tells what is not saved.

    Those are the strategy, of a class of the user's, and the functions that it calls.
    Each with ``state_dict`` and ``load_state_dict`` is saved. Callbacks are saved by
    themselves; here it is only told what they do not save.

    It stands behind all other callbacks. What these set when a run starts, they set
    when it resumes, too.

    Parameters
    ----------
    objects : mapping of str to object
        The strategy, and functions, by their names in the state.
    callbacks : iterable of Callback
        All callbacks that the user gives.
    others : iterable of object
        Other objects of the run, which are saved by themselves or do not change.
    shapes : list of tuple of int
        The `sorted_shapes` of the global model's tensors.
    """

    name = "own-state"

    def __init__(
        self,
        objects: Mapping[str, object],
        callbacks: Iterable[Callback],
        others: Iterable[object],
        shapes: Shapes,
    ) -> None:
        callbacks = list(callbacks)
        self._objects: dict[str, Any] = {}
        for callback in filter(is_users, callbacks):
            names = (f"{CALLBACK_PART}{callback.name}{n or ''}" for n in count())
            free = next(name for name in names if name not in self._objects)
            self._objects[free] = callback
        for name, given in objects.items():
            # The state of a method is that of its object.
            owner = given.__self__ if isinstance(given, MethodType) else given
            known = any(owner is each for each in (*self._objects.values(), *callbacks))
            if is_users(owner) and not known:
                self._objects[name] = owner
        self._loaded = LoadedModels()
        self._is_opaque = Opaque(
            [*self._objects.values()], [*others, *callbacks], shapes, self._loaded
        )
        self._run: RunState | None = None
        self._start = {name: self._digests(name) for name in self._objects}
        # What has been changed when the run was saved, and is not as it was then.
        self._resumed_with: dict[str, Digests] = {}
        self._lost: list[str] = []
        self._resumes = False
        self._told: set[str] = set()
        self._lacks: list[str] = []
        # What `evaluate_fn` keeps after each evaluation, and after the last that ended.
        self._by_round: dict[int, StateDict] = {}
        self._evaluated: StateDict = {}

    @property
    def has_any(self) -> bool:
        """Whether there is an object of the user's."""
        return bool(self._objects)

    def since(self, name: str, start: Digests | None) -> Digests | None:
        """Compare an object with what it kept at an earlier `start`; return that.

        A run that resumes in another process has nothing of the runs before it.
        """
        if name in self._objects and start is not None:
            self._start[name] = start
        return self._start.get(name)

    def watched(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return a function that notes what `evaluate_fn` keeps after each evaluation.

        It runs beside the loop, and a run that resumes evaluates again what was under
        way.
        """
        if not self.has_any:
            return evaluate_fn

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            if self._loaded.has_any:
                self._loaded.note("evaluated", wire.from_record(arrays))
            found = evaluate_fn(number, arrays)
            if _EVALUATE in self._objects:
                self._by_round[number] = self._kept_by_evaluate()
            return found

        draws_nothing = getattr(evaluate_fn, "draws_nothing", False)
        vars(evaluate)["draws_nothing"] = draws_nothing
        return evaluate

    def state_dict(self) -> StateDict:
        """Return the states, and digests of all that has changed since the start."""
        self._note_versions("saved")
        state = {
            name: self._evaluated if name == _EVALUATE else self._snapshot(name)
            for name in self._objects
        }
        self._lacks = [
            name
            for key, each in self._objects.items()
            if not _has_own_state(each)
            for name in state[key]["changed"]
        ]
        return state

    def part_at(self, keys: Sequence[str | int]) -> tuple[object, Sequence[str | int]]:
        """Return the object whose state a place is in, and where it is in that one."""
        name, _, *rest = keys
        return self._objects[str(name)], rest

    def load_state_dict(self, state: StateDict) -> None:
        """Load the states; CheckpointError if an object cannot."""
        self._resumes = True
        self._resumed_with = {name: saved["changed"] for name, saved in state.items()}
        for name in names_in(state):
            if name not in self._objects:
                logger.warning(
                    "the checkpoint has the state of %r, which is not there now: it is "
                    "left out",
                    name,
                )
        for name, each in self._objects.items():
            if name not in state or "state" not in state[name] or not _is_saved(each):
                continue
            load_saved(each, state[name]["state"])

    def left_out(self) -> str:
        """Return what the state that was made last lacks; "" for nothing new."""
        found = [name for name in self._lacks if name not in self._told]
        self._told.update(found)
        if not found:
            return ""
        return (
            f"no checkpoint has {_listed(found)}, so a run that resumes begins "
            "without: save it by state_dict and load_state_dict"
        )

    def on_start(self, state: RunState) -> None:
        """Note what callbacks have when they have started."""
        self._run = state
        for name, each in self._objects.items():
            if _starts_alike(each):
                self._start[name] = self._digests(name)
        if _EVALUATE in self._objects:
            self._evaluated = self._kept_by_evaluate()

    def on_resume(self, state: RunState) -> None:
        """Note what `evaluate_fn` keeps, before it is called again."""
        self.on_start(state)
        self._find_lost([_EVALUATE])

    def on_pause(self, state: RunState) -> None:
        """Tell what is not as it was when the run was saved.

        By now `configure_evaluate` has been called again for rounds that were out.
        """
        if not self._resumes:
            return
        self._resumes = False
        self._find_lost([*self._resumed_with])
        self._told.update(self._lost)
        if self._lost:
            logger.warning(
                "the run resumes without what it had in %s when it was saved (see "
                "docs/checkpoints.md)",
                _listed(self._lost),
            )

    def on_round(self, state: RunState, number: int) -> None:
        """Note the version that hooks and callbacks may have loaded."""
        self._note_versions("round")

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Note what `evaluate_fn` keeps when its metrics have been passed on."""
        if evaluation.source == ServerEvaluator.source:
            found = self._by_round.pop(evaluation.round, None)
            self._evaluated = self._evaluated if found is None else found

    def _note_versions(self, source: str) -> None:
        if self._run is None or not self._loaded.has_any:
            return
        self._loaded.note(source, self._run.served)
        if self._run.averaged is not None:
            self._loaded.note(f"{source} without averaging", self._run.arrays)

    def _find_lost(self, keys: Iterable[str]) -> None:
        for key in keys:
            before = self._resumed_with.pop(key, {})
            now = self._digests(key) if key in self._objects else before
            self._lost += [
                name
                for name, saved in before.items()
                if now.get(name, _GONE) not in (saved, UNKNOWN)
            ]

    def _snapshot(self, key: str) -> StateDict:
        """Return an object's state, and digests of what has changed in it."""
        each, start = self._objects[key], self._start[key]
        state = {"state": state_to_save(each)} if _is_saved(each) else {}
        now = self._digests(key)
        changed = {
            name: now.get(name, _GONE)
            for name in {**start, **now}
            if now.get(name) in (UNKNOWN, None) or now[name] != start.get(name)
        }
        return {**state, "changed": changed}

    def _kept_by_evaluate(self) -> StateDict:
        """Return the snapshot of `evaluate_fn`, which the next evaluation changes."""
        found = self._snapshot(_EVALUATE)
        try:
            return deepcopy(found)
        except Exception:  # it is no state: that is told when it is saved
            return found

    def _digests(self, key: str) -> Digests:
        return {
            name: digest(held, self._is_opaque)
            for name, held in held_by(self._objects[key]).items()
        }


def names_in(state: StateDict) -> list[str]:
    """Return of which objects a state has something, by name, but for callbacks."""
    return [
        name
        for name, saved in state.items()
        if not name.startswith(CALLBACK_PART) and ("state" in saved or saved["changed"])
    ]


def _is_saved(owner: object) -> bool:
    """Return whether an object is saved here."""
    return isinstance(owner, Stateful) and not isinstance(owner, Callback)


def _has_own_state(owner: object) -> bool:
    """Return whether a state_dict that is none of this package saves an object."""
    found = getattr(type(owner), "state_dict", None)
    inherited = isinstance(found, FunctionType) and not is_users(found)
    return isinstance(owner, Stateful) and not inherited


def _starts_alike(owner: object) -> bool:
    """Return whether a callback does the same when its run starts and resumes."""
    return isinstance(owner, Callback) and type(owner).on_resume is Callback.on_resume


def _listed(names: list[str]) -> str:
    names = list(dict.fromkeys(names))  # callbacks of one class have the same
    if len(names) > _MOST_NAMES:
        more = len(names) - _MOST_NAMES
        return f"{', '.join(names[:_MOST_NAMES])} and {more} more"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
