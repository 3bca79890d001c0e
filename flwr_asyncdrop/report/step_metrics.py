"""What the aggregator says of the steps of a run, a curve a name."""

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flwr_asyncdrop.report.metric import LARGEST
from flwr_asyncdrop.report.tasks import Floats

_MOST_CURVES = 6


class StepMetrics:
    """The numbers of ``step`` lines up to `LARGEST`, of the first names that come.

    An aggregator of somebody's own may say a number for each layer: of the names for
    which there is no room, `num_names` says how many there are.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._curves: dict[str, tuple[array[float], array[float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._curves)

    @property
    def num_names(self) -> int:
        """How many names the aggregator has given to its numbers."""
        return len(self._names)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take the numbers of a line; what is null was NaN or infinity."""
        for name, value in record["metrics"].items():
            self._names.add(name)
            if name not in self._curves and len(self._curves) < _MOST_CURVES:
                self._curves[name] = array("d"), array("d")
            if name not in self._curves or value is None:
                continue
            if not math.isfinite(value):
                raise ValueError(f"the number {name!r} of a step is {value}")
            if abs(value) <= LARGEST:
                times, values = self._curves[name]
                times.append(record["time"])
                values.append(value)

    def curves(self) -> Iterator[tuple[str, Floats, Floats]]:
        """Yield each name with its times and values, of one length, which may be 0."""
        for name, (times, values) in self._curves.items():
            yield name, np.array(times), np.array(values)
