"""Whether a run that resumes has all that a user's own objects have.

A new object that has loaded what was saved must be what the object itself is, attribute
by attribute. What both hold in common, such as a list of their class, must be what it
was when the run began.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from flwr_asyncdrop.completeness.comparison import Comparison, Parts
from flwr_asyncdrop.completeness.contents import has_own
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.seeding import kept_global_generators
from flwr_asyncdrop.state_dict import StateDict, Stateful


class Unsaved:
    """Finds what a user's own objects have, and no checkpoint.

    Parameters
    ----------
    parts : mapping of str to object
        The objects, before the run changes them.
    build : callable
        Returns new ones, as a run that resumes has them before it loads anything.
    """

    def __init__(self, parts: Parts, build: Callable[[], Parts]) -> None:
        self._parts = parts
        self._build = build
        self._start = Comparison()
        self._needed = True
        self._unable = ""
        try:
            self._needed = any(has_own(part) for part in parts.values())
            if self._needed:
                with kept_global_generators():
                    self._start.run(parts, build())
        except Exception as error:  # whatever the user's own code raises
            self._unable = _cannot("build and compare the run's parts", error)

    def find(self, read: Callable[[], StateDict]) -> str:
        """Return what a run would lack that resumes from a checkpoint; "" if nothing.

        `read` returns the states of the parts that are saved, by their names, as they
        are read again.
        """
        if not self._needed:
            return ""
        if self._unable:
            return self._unable
        states = read()
        found = Comparison(self._start, {id(each) for each in _tensors(states)})
        doing = "build the run's parts again"
        try:
            with kept_global_generators():
                again = self._build()
                for name, state in states.items():
                    part = again[name]
                    if isinstance(part, Stateful):
                        kind = type(part).__name__
                        doing = f"load the state_dict of {kind} into another {kind}"
                        before = _versions(state)
                        part.load_state_dict(state)
                        if _versions(state) != before:  # it is written after this
                            return (
                                f"{kind}.load_state_dict changes tensors of the state "
                                "that it gets, in place"
                            )
                doing = "compare the run's parts with what was saved of them"
                found.run(self._parts, again)
        except Exception as error:  # whatever the user's own code raises
            return _cannot(doing, error)
        return f"no checkpoint has {found.lost[0]}" if found.lost else ""


def _cannot(doing: str, error: Exception) -> str:
    return f"one that resumes cannot {doing} ({one_line(error)})"


def _versions(state: StateDict) -> list[int]:
    """Return how often the tensors of a state were changed in place."""
    tensors = (each for each in _tensors(state) if not each.is_inference())
    return [each._version for each in tensors]


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list):
        for item in state.values() if isinstance(state, dict) else state:
            yield from _tensors(item)
