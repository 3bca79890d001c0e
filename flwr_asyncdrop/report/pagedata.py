"""What the script of the page draws from, as JSON that is safe inside of HTML."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from flwr_asyncdrop.report.comparison import Comparison, Row
from flwr_asyncdrop.report.curves import Band, band
from flwr_asyncdrop.report.intervals import FEWEST, MOST_ALL
from flwr_asyncdrop.report.looks import Look, looks
from flwr_asyncdrop.report.runlog import Curve, Point, joules_of
from flwr_asyncdrop.report.series import Series

_BUCKETS: Final = 120  # of the x axis; each has up to eight points of a line
_DIGITS: Final = 5  # of the width of a plot, or of its height
_MOST: Final = 15  # digits, which is what a float has
# Colours that are too dark on a dark page, and what stands for them there.
_ON_DARK: Final = MappingProxyType({"#000000": "#FFFFFF", "#0072B2": "#5A95FF"})
# Characters with which a text could end the script that it stands in.
_ESCAPED: Final = MappingProxyType(
    {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
)


def page_data(series: Sequence[Series], comparison: Comparison) -> str:
    """Return the lines and what the table needs to follow another target.

    Lines are thinned. What a seed reached when is exact: of each run, all evaluations
    that were better than all before.
    """
    target, metric = comparison.target, comparison.target.metric
    styles = looks(series)
    rows = zip(series, comparison.rows, strict=True)
    first = next(log for one in series for log in one.runs.values())
    return embedded(
        {
            "metric": {
                "title": metric.title,
                "share": metric.is_share,
                "falls": metric.falls,
            },
            "target": {"value": target.value},
            "reference": comparison.reference,
            "timeLabel": first.time_label,
            "fewest": FEWEST,
            "mostAll": MOST_ALL,
            "rows": [_row(one, row, styles[one.label]) for one, row in rows],
        }
    )


def embedded(values: Any) -> str:
    """Return JSON that cannot end the HTML element that it stands in."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPED)


def _row(one: Series, row: Row, look: Look) -> dict[str, Any]:
    curves = one.curves
    return {
        "label": one.label,
        "light": look.color,
        "dark": _ON_DARK.get(look.color, look.color),
        "dashes": _dashes(look),
        "width": round(1.3 * look.width, 2),
        "final": None if row.final is None else row.final.mean,
        "runs": {str(seed): _records(curve) for seed, curve in curves.items()},
        "bands": _bands(list(curves.values())) if curves else None,
    }


def _dashes(look: Look) -> str:
    if isinstance(look.dashes, str):
        return "none"
    return " ".join(f"{2 * each:g}" for each in look.dashes[1])


def _records(curve: Curve) -> list[list[float]]:
    """Return the points that are better than all before, which alone meet a target."""
    found: list[Point] = []
    for point in curve.points:
        better = curve.metric.goodness
        if not found or better(point.value) > better(found[-1].value):
            found.append(point)
    return [
        [
            each.value,
            _rounded(each.time, 9),
            each.num_bytes,
            each.update,
            *_joules(each),
        ]
        for each in found
    ]


def _joules(point: Point) -> list[float]:
    return [] if point.joules is None else [_rounded(point.joules, 9)]


def _bands(curves: Sequence[Curve]) -> Mapping[str, Mapping[str, list[float]]]:
    lines = {
        "time": band(curves, lambda point: point.time),
        "bytes": band(curves, lambda point: point.num_bytes),
        "updates": band(curves, lambda point: point.update),
    }
    if all(curve.counts_energy for curve in curves):
        lines["energy"] = band(curves, joules_of)
    return {axis: _numbers(line.thinned(_BUCKETS)) for axis, line in lines.items()}


def _numbers(line: Band) -> dict[str, list[float]]:
    digits = _digits(float(line.low.min()), float(line.high.max()))
    return {
        "x": _short(line.x, _DIGITS),
        "mean": _short(line.mean, digits),
        "low": _short(line.low, digits),
        "high": _short(line.high, digits),
    }


def _digits(low: float, high: float) -> int:
    """Return with how many digits `_DIGITS` of what lies between two numbers differ."""
    largest = max(abs(low), abs(high))
    in_common = math.log10(largest / (high - low)) if high > low else math.inf
    return min(_DIGITS + max(0, math.floor(min(in_common, _MOST))), _MOST)


def _short(values: Iterable[float], digits: int) -> list[float]:
    return [_rounded(value, digits) for value in values]


def _rounded(value: float, digits: int) -> float:
    """Round to digits that can be seen; whole numbers need no point."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded
