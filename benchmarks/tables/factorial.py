"""What each of some parts is worth, from runs with all combinations of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Final

from flwr_asyncdrop.report.intervals import Interval, interval
from flwr_asyncdrop.report.runlog import Curve
from flwr_asyncdrop.report.series import Series

TARGET: Final = 0.75
_PARTS: Final = {
    "drop-rate": "submodels",
    "group-memory": "memory",
    "logit-adjustment": "loss",
    "averaging": "average",
}
_OFF: Final = ("0.0", "false")

Cell = tuple[bool, ...]
"""Which parts are on, in the order of `_PARTS`."""


def factorial(series: Sequence[Series]) -> Iterator[str]:
    """Yield the effects of the parts, then each combination, as tables.

    Labels are ``ALGORITHM,KEY=VALUE,...`` with the keys of `_PARTS`; 0 and false are
    off. All runs take as long, which a run counts as its seconds to the target if it
    does not get there.
    """
    cells = {_cell(one.label): one.curves for one in series}
    seeds = sorted(next(iter(cells.values())))
    yield "| part | final accuracy with it, in points | time to 75 % with it |"
    yield "| --- | --- | --- |"
    for place, name in enumerate(_PARTS.values()):
        pairs = [
            (curves, cells[_flipped(cell, place)])
            for cell, curves in cells.items()
            if cell[place]
        ]
        points = [_points(pairs, seed) for seed in seeds]
        seconds = [_seconds(pairs, seed) for seed in seeds]
        ratio = interval(seconds, _ratio)
        yield (
            f"| {name} | {_text(interval(points, fmean), '+.1f')}"
            f"{_star(interval(points, fmean).is_clear)} | {_text(ratio, '.2f', 'x')}"
            f"{_star(_excludes_one(ratio))} |"
        )
    yield ""
    yield f"| {' | '.join(_PARTS.values())} | final accuracy | s to 75 % |"
    yield f"|{' :-: |' * len(_PARTS)} --: | --: |"
    for cell in sorted(cells, reverse=True):
        curves = list(cells[cell].values())
        marks = " | ".join("on" if on else "" for on in cell)
        final = 100 * fmean(curve.final.value for curve in curves)
        yield f"| {marks} | {final:.1f} | {_mean_arrival(curves)} |"


def _mean_arrival(curves: Sequence[Curve]) -> str:
    """Return the mean of those that arrive, and how many do if not all."""
    found = [_arrival(curve) for curve in curves if _arrives(curve)]
    if not found:
        return "–"
    some = f" ({len(found)}/{len(curves)})" if len(found) < len(curves) else ""
    return f"{fmean(found):,.0f}{some}"


def _cell(label: str) -> Cell:
    values = dict(each.split("=") for each in label.split(",")[1:])
    return tuple(values[key] not in _OFF for key in _PARTS)


def _flipped(cell: Cell, place: int) -> Cell:
    return (*cell[:place], not cell[place], *cell[place + 1 :])


Pairs = Sequence[tuple[Mapping[int, Curve], Mapping[int, Curve]]]


def _points(pairs: Pairs, seed: int) -> float:
    """Return how much higher a seed ends with the part, on average over the others."""
    return 100 * fmean(
        on[seed].final.value - off[seed].final.value for on, off in pairs
    )


def _seconds(pairs: Pairs, seed: int) -> tuple[float, float]:
    """Return a seed's seconds to the target with the part and without, all together."""
    with_it = sum(_arrival(on[seed]) for on, _ in pairs)
    return with_it, sum(_arrival(off[seed]) for _, off in pairs)


def _ratio(seconds: Sequence[tuple[float, float]]) -> float:
    with_it, without = map(sum, zip(*seconds, strict=True))
    return with_it / without


def _arrives(curve: Curve) -> bool:
    return curve.best.value >= TARGET


def _arrival(curve: Curve) -> float:
    times = (point.time for point in curve.points if point.value >= TARGET)
    return next(chain(times, [curve.final.time]))


def _text(found: Interval, spec: str, unit: str = "") -> str:
    text = f"{found.value:{spec}}{unit}"
    if found.low is None or found.high is None:
        return text
    return f"{text} [{found.low:{spec}}, {found.high:{spec}}]"


def _excludes_one(found: Interval) -> bool:
    if found.low is None or found.high is None:
        return False
    return found.low > 1 or found.high < 1


def _star(clear: bool) -> str:  # a word for it would say less
    return "\\*" if clear else ""
