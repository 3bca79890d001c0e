"""How each algorithm is drawn: the same in every figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from types import MappingProxyType
from typing import Final

from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.target import OURS

_SOLID: Final = "-"
_DASHED: Final = (0, (4, 1.5))
_DOTTED: Final = (0, (1, 1.2))

_Dashes = str | tuple[float, tuple[float, ...]]

# Okabe and Ito's colours, which the colour-blind can tell apart; algorithms that
# share one are of a family and differ in their dashes.
_ALGORITHMS: Final = MappingProxyType[str, tuple[str, _Dashes]](
    {
        "fedavg": ("#8A8A8A", _DOTTED),
        "async-fedavg": ("#000000", _SOLID),
        "async-weighted": ("#CC79A7", _SOLID),
        "async-fedprox": ("#CC79A7", _DASHED),
        "async-fjord": ("#E69F00", _SOLID),
        "fedbuff": ("#009E73", _SOLID),
        "fedbuff-wait": ("#009E73", _DASHED),
        "asyncdrop": ("#56B4E9", _SOLID),
        "hetero-asyncdrop": ("#0072B2", _SOLID),
        "layerwise-asyncdrop": ("#0072B2", _DASHED),
        "asyncdrop-plus": ("#D55E00", _SOLID),
    }
)
_COLOURS: Final = tuple(dict.fromkeys(colour for colour, _ in _ALGORITHMS.values()))
_THIN, _THICK = 1.0, 1.6  # the baselines' lines, and ours


@dataclass(frozen=True)
class Look:
    """A line's colour, dashes as Matplotlib has them, and width in points."""

    color: str
    dashes: _Dashes
    width: float


def looks(series: Sequence[Series]) -> dict[str, Look]:
    """Return the look of every label: its algorithm's own, for the first of them.

    The other labels take colours that nobody else has, or dashes if there are none.
    """
    chosen: dict[str, tuple[str, _Dashes]] = {}
    for one in series:
        own = _ALGORITHMS.get(one.algorithm)
        if own is not None and own not in chosen.values():
            chosen[one.label] = own
    taken = {colour for colour, _ in chosen.values()}
    free = [(colour, _SOLID) for colour in _COLOURS if colour not in taken]
    dashed = [(colour, _DASHED) for colour in _COLOURS]
    spare: Iterator[tuple[str, _Dashes]] = cycle([*free, *dashed])
    result = {}
    for one in series:
        colour, dashes = chosen.get(one.label) or next(spare)
        width = _THICK if one.algorithm in OURS else _THIN
        result[one.label] = Look(colour, dashes, width)
    return result
