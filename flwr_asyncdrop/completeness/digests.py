"""Digests of what a user's own objects hold: the same in another process."""

import hashlib
from collections.abc import Callable, Mapping, Set
from types import CodeType
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_asyncdrop.completeness.contents import (
    ARRAYS,
    LEAVES,
    LISTS,
    attributes,
    digest_of,
    is_cached,
)
from flwr_asyncdrop.parameters import plain

IsOpaque = Callable[[object], bool]
"""Whether an object is not looked into."""

UNKNOWN = ""
"""The digest of what cannot be read, so that nobody knows whether it has changed."""

_RECORDS = (ArrayRecord, ConfigRecord, MetricRecord, RecordDict)
_CYCLE = "itself"
_LARGE = 1000


def digest(value: object, is_opaque: IsOpaque) -> str:
    """Return the digest of all that a value holds, by what it is made of.

    Tensors count by their bytes, numbers by their value, lists and tuples alike, and
    objects by their class, too. Code, and what a `cached_property` has made, do not
    count.
    """
    try:
        return _Digests(is_opaque).of(value)
    except Exception:  # whatever the user's own code raises
        return UNKNOWN


class _Digests:
    def __init__(self, is_opaque: IsOpaque) -> None:
        self._is_opaque = is_opaque
        self._known: dict[int, str] = {}
        self._held: list[object] = []  # so that no other object gets its id

    def of(self, value: Any) -> str:
        if isinstance(value, CodeType):
            return value.co_qualname
        if isinstance(value, bytes) and len(value) > _LARGE:
            return hashlib.sha256(value).hexdigest()
        if isinstance(value, LEAVES):
            return _text(value)
        if id(value) not in self._known:
            self._held.append(value)
            self._known[id(value)] = _CYCLE
            parts = repr(self._parts(value)).encode(errors="surrogatepass")
            self._known[id(value)] = hashlib.sha256(parts).hexdigest()
        return self._known[id(value)]

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, type):
            return ["class", value.__qualname__]
        if isinstance(value, ARRAYS):
            return ["array", str(value.dtype), tuple(value.shape), digest_of(value)]
        if isinstance(value, Array):
            return ["array", value.dtype, tuple(value.shape), self.of(value.data)]
        if self._is_opaque(value):
            return ["opaque"]
        items: list[Any] = []
        if isinstance(value, Mapping):
            pairs = list(value.items())
            items = ["mapping", *((self.of(k), self.of(part)) for k, part in pairs)]
        elif isinstance(value, LISTS):
            items = ["list", *map(self.of, list(value))]
        elif isinstance(value, Set):
            items = ["set", *sorted(map(self.of, list(value)))]
        else:
            items = ["object", type(value).__qualname__]
        found = {} if isinstance(value, _RECORDS) else attributes(value)
        names = (name for name in sorted(found) if not is_cached(value, name))
        return [*items, *((name, self.of(found[name])) for name in names)]


def _text(value: Any) -> str:
    """Return what cannot change as a text: that of 1 is that of 1.0 and of NumPy's."""
    number = plain(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return repr(int(number) if isinstance(number, bool) else number)
