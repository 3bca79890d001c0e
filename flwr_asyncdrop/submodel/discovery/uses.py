"""Which operation took a unit last, for the reasons."""

import numpy as np

from flwr_asyncdrop.submodel.discovery.unionfind import Ids, UnionFind

_UNUSED = -1


class Uses:
    """The last operation that took each unit, in the order of tracing."""

    def __init__(self) -> None:
        self._last: Ids = np.zeros(0, np.int64)
        self._operations: list[str] = []

    def note(self, ids: Ids, operation: str) -> None:
        """Note that `operation` takes these units; 0 stands for none."""
        end = int(ids.max(initial=0)) + 1
        if end > len(self._last):
            grown = np.full(max(end, 2 * len(self._last)), _UNUSED, np.int64)
            grown[: len(self._last)] = self._last
            self._last = grown
        self._last[ids] = len(self._operations)
        self._operations.append(operation)

    def last(self, unit: int, units: UnionFind) -> str | None:
        """Return what took `unit` last, or one joined with it; None if nothing did."""
        known = np.arange(1, min(len(self._last), len(units)))
        alike = known[units.roots(known) == units.roots(np.array([unit]))]
        number = int(self._last[alike].max(initial=_UNUSED))
        return None if number == _UNUSED else self._operations[number]
