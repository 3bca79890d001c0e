"""Leave tensors that a model's code keeps outside of the model as they were.

Tables of positions and masks often lie in a dict of a class or of a file, in a closure,
or in ``functools.lru_cache``. A copy that runs in another precision, or narrower, would
fill these for the model that was copied.
"""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any

from torch import nn

from flwr_asyncdrop.submodel.probing.nested import tensors_within
from flwr_asyncdrop.submodel.reach import ABSENT, LRU, PLAIN, content, places_of


@contextmanager
def kept_caches(model: nn.Module) -> Iterator[None]:
    """On leaving, put back tensors that are kept where the code of `model` reaches.

    These are global variables, attributes of classes, functions and objects, closures,
    and containers in any of them. Plain values beside tensors are put back, too. What
    has no tensors stays as it is by then. A ``functools.lru_cache`` that has got some
    is emptied.
    """
    undo = [_remember(place) for place in places_of(model)]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


def _remember(place: Any) -> Callable[[], None]:
    """Return what puts back the tensors that a place holds now."""
    if isinstance(place, LRU):
        return functools.partial(_clear, place, place.cache_info().misses)
    if isinstance(place, list):
        return functools.partial(_put_back_items, place, list(place))
    if isinstance(place, CellType):
        return functools.partial(_put_back_content, place, content(place))
    return functools.partial(_put_back, place, _names(place))


def _clear(cached: Any, misses: int) -> None:
    if cached.cache_info().misses > misses and _holds(gc.get_referents(cached)):
        cached.cache_clear()


def _put_back_items(place: list[Any], before: list[Any]) -> None:
    known = set(map(id, before))
    if any(id(item) not in known and _holds(item) for item in place):
        place[:] = before


def _put_back_content(place: CellType, before: Any) -> None:
    now = content(place)
    if now is before or not (_is_plain(now) or _holds(now)):
        return
    if before is ABSENT:
        del place.cell_contents
    else:
        place.cell_contents = before


def _put_back(place: Any, before: dict[Any, Any]) -> None:
    now = _names(place)
    changed = {
        name: (old, new)
        for name in now.keys() | before.keys()
        if (old := before.get(name, ABSENT)) is not (new := now.get(name, ABSENT))
    }
    if not any(_holds(value) for pair in changed.values() for value in pair):
        return
    for name, (old, new) in changed.items():
        # A number beside a table may be its length.
        if not any(_is_plain(value) or _holds(value) for value in (old, new)):
            continue
        if isinstance(place, type):
            if old is ABSENT:
                type.__delattr__(place, name)
            else:
                type.__setattr__(place, name, old)
        elif old is ABSENT:
            del place[name]
        else:
            place[name] = old


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN)


def _holds(value: Any) -> bool:
    """Whether there are tensors within `value`."""
    return bool(tensors_within(value))


def _names(place: Any) -> dict[Any, Any]:
    return vars(place).copy() if isinstance(place, type) else dict.copy(place)
