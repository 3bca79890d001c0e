"""Whether new objects are, attribute by attribute, what others are.

What both hold in common, such as a list of their class, is compared with what it was at
a start.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple

from torch.optim import Optimizer

from flwr_asyncdrop.completeness.contents import (
    ARRAYS,
    LEAVES,
    LISTS,
    attributes,
    digest_of,
    is_cached,
    is_own,
    is_same_number,
    makes_missing,
    of_classes,
    precision_of,
    same_array,
)
from flwr_asyncdrop.state_dict import Stateless

Parts = Mapping[str, object]
"""What a run is made of, by name."""

_ABSENT = object()


class _Place(NamedTuple):
    """Where a value is.

    `owner` is the innermost object of a user's own around it, and `name` an attribute
    of that.
    """

    path: str
    owner: object = None
    name: str = ""
    ordered: bool = True  # so that the order of a mapping's keys matters

    def item(self, key: object) -> "_Place":
        path = f"{self.path}[{key!r}]"
        return _Place(path, self.owner, self.name, self.ordered)

    def attribute(self, owner: object, name: str) -> "_Place":
        path = f"{self.path}.{name}"
        # PyTorch's optimizers load the keys of their groups in an order of their own.
        ordered = self.ordered and not isinstance(owner, Optimizer)
        if self.owner is None or is_own(owner):
            return _Place(path, owner, name, ordered)
        return _Place(path, self.owner, self.name, ordered)

    def described(self, *, shared: bool = False) -> str:
        """Return the attribute and its owner, and why no checkpoint has it."""
        owner, kind = self.owner, type(self.owner)
        if isinstance(owner, FunctionType):
            around = self.name in owner.__code__.co_freevars
            what = f"the variable {self.name}" if around else self.name
            return f"{what} of the function {owner.__name__}, which saves nothing"
        what = f"{kind.__name__}.{self.name}"
        if shared:
            return f"{what}, which is not the object's own: all runs share it"
        if getattr(kind, "state_dict", Stateless.state_dict) is Stateless.state_dict:
            return f"{what}, which has no state_dict and load_state_dict of its own"
        return f"{what}, which load_state_dict(state_dict()) does not bring back"


class Comparison:
    """What the parts of a run lack when they are new, and have loaded their states.

    Without a `start` it is that one: it notes what there is. `loaded` are the ids of
    tensors of the state, which both have.
    """

    def __init__(
        self,
        start: "Comparison | None" = None,
        loaded: Set[int] = frozenset(),
    ) -> None:
        self.lost: list[str] = []
        self._start = start
        self._loaded = loaded
        self._there: set[str] = set()  # attributes, by their paths
        self._common: dict[str, str] = {}  # what both hold in common, by its path
        self._seen: dict[tuple[int, int], tuple[object, object]] = {}

    def run(self, parts: Parts, again: Parts) -> None:
        """Compare parts with new ones of the same names."""
        for name, part in parts.items():
            self._compare(part, again[name], _Place(name))
        self._seen.clear()

    def _compare(self, now: Any, again: Any, place: _Place) -> None:
        pair = id(now), id(again)
        if pair in self._seen or id(now) == id(again) in self._loaded:
            return
        self._seen[pair] = now, again
        if now is again:
            if not isinstance(now, LEAVES):
                # What both have loaded may be of another kind than what there was.
                self._share(now, place, with_kind=False)
        elif isinstance(now, (*LEAVES, type)) or isinstance(again, (*LEAVES, type)):
            # NaN is equal to itself, and 1 to 1.0, but not to a member of an IntEnum.
            differ = now != again and repr(now) != repr(again)
            other_kind = isinstance(now, Enum) != isinstance(again, Enum)
            if differ or other_kind or precision_of(now) != precision_of(again):
                self._lose(place)
        elif isinstance(now, ARRAYS) and isinstance(again, ARRAYS):
            if not same_array(now, again):
                self._lose(place)
        else:
            self._compare_items(now, again, place)
            self._compare_attributes(now, again, place)

    def _compare_items(self, now: Any, again: Any, place: _Place) -> None:
        if isinstance(now, Mapping) and isinstance(again, Mapping):
            other_kind = makes_missing(now) and type(now) is not type(again)
            if len(now) != len(again) or other_kind:
                self._lose(place)
                return
            # Keys may be objects that are equal to themselves alone, as parameters are.
            known = not place.ordered and now.keys() == again.keys()
            others = list(now if known else again)
            for one, other in zip(list(now), others, strict=True):
                self._compare_item(one, other, place, ("key", one))
                self._compare_item(now[one], again[other], place, one)
        elif isinstance(now, LISTS) and isinstance(again, LISTS):
            if len(now) != len(again) or _list_kind(now) != _list_kind(again):
                self._lose(place)
                return
            for key, (one, other) in enumerate(zip(now, again, strict=True)):
                self._compare_item(one, other, place, key)
        elif repr(type(now)) != repr(type(again)) or (  # it may be made with its object
            isinstance(now, Set) and now != again and _texts(now) != _texts(again)
        ):
            self._lose(place)

    def _compare_item(self, now: Any, again: Any, place: _Place, key: object) -> None:
        if not is_same_number(now, again):
            self._compare(now, again, place.item(key))

    def _compare_attributes(self, now: Any, again: Any, place: _Place) -> None:
        for kind, name, held in of_classes(now):
            self._share(held, _Place(f"{kind.__qualname__}.{name}", now, name))
        mine, its = attributes(now), attributes(again)
        for name in {**mine, **its}:
            cached = is_cached(now, name)
            default = _ABSENT if cached else getattr(type(now), name, _ABSENT)
            here = place.attribute(now, name)
            value = mine.get(name, default)
            other = its.get(name, default)
            if value is _ABSENT and (
                self._start is None or here.path not in self._start._there
            ):
                continue  # what is not there yet cannot be lost
            self._there.add(here.path)
            if other is _ABSENT and cached:
                other = getattr(again, name)  # it is derived, if it is the same there
            if value is _ABSENT or other is _ABSENT:
                self._lose(here)
            else:
                self._compare(value, other, here)

    def _share(self, value: Any, place: _Place, *, with_kind: bool = True) -> None:
        """Compare what each new object holds, too, with what it was at the start."""
        for here, content in _contents(value, place, with_kind=with_kind):
            self._common[here.path] = content
            was = content if self._start is None else self._start._common.get(here.path)
            if was not in (content, None):
                self._lose(here, shared=True)
                return

    def _lose(self, place: _Place, *, shared: bool = False) -> None:
        self.lost.append(place.described(shared=shared))


def _list_kind(value: Any) -> tuple[bool, bool]:
    """Return what makes a list another one than one of the same items.

    It is whether it has ends, as a deque has, and names, as a named tuple has.
    """
    return isinstance(value, deque), hasattr(type(value), "_fields")


def _contents(
    value: Any,
    place: _Place,
    seen: dict[int, object] | None = None,
    *,
    with_kind: bool = True,
) -> Iterator[tuple[_Place, str]]:
    """Yield what there is in a value, each with its place, as comparable text.

    An object's class is there, too; not `with_kind`, that of the value itself is not.
    """
    seen = {} if seen is None else seen  # kept, so that no other object gets its id
    if isinstance(value, LEAVES):
        yield place, repr(value)
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, ARRAYS):
        yield place, digest_of(value)
    elif isinstance(value, Mapping):
        yield place, repr(list(value))
        for key, item in value.items():
            yield from _contents(item, place.item(key), seen)
    elif isinstance(value, LISTS):
        yield place, str(len(value))
        for key, item in enumerate(value):
            yield from _contents(item, place.item(key), seen)
    elif isinstance(value, Set):
        yield place, repr(sorted(map(repr, value)))
    elif with_kind:
        yield place, repr(value if isinstance(value, type) else type(value))
    own = {n: p for n, p in attributes(value).items() if not is_cached(value, n)}
    yield place._replace(path=f"{place.path}."), repr(sorted(own))
    for kind, name, held in of_classes(value):
        there = _Place(f"{kind.__qualname__}.{name}", value, name)
        yield from _contents(held, there, seen)
    for name, part in own.items():
        yield from _contents(part, place.attribute(value, name), seen)


def _texts(values: Iterable[object]) -> list[str]:
    """Return what there is in each of some objects, in an order of its own."""
    return sorted(
        repr([(there.path, content) for there, content in _contents(value, _Place(""))])
        for value in values
    )
