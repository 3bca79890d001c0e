"""The tables of what codecs cost and save: each algorithm with each codec."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from benchmarks.tables.cells import NONE, costs, points
from flwr_asyncdrop.report.comparison import Row, Spread, compare
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.target import Target

_BASELINE: Final = "fedbuff"
_KEY: Final = ",codec="
_CODECS: Final = ("none", "q8", "q4", "q2", "topk-q4")
_MB: Final = 1e6


def codec_table(series: Sequence[Series], value: float) -> Iterator[str]:
    """Yield a table: a row for each algorithm with each codec.

    A row's accuracy is beside that of the same algorithm without a codec, seed by seed,
    and its bytes beside those of the baseline without one.
    """
    ordered = sorted(
        series, key=lambda each: (each.algorithm, _CODECS.index(_codec(each.label)))
    )
    metric = next(iter(ordered[0].curves.values())).metric
    table = compare(ordered, Target(metric, value, "given"))
    rows = {row.label: row for row in table.rows}
    sent = {each.label: _megabytes(each) for each in ordered}
    whole = sent[_without(_BASELINE)]
    heads = [f"final {metric.title}", "beside `none`", "ends at, s", "MB in all"]
    heads += [
        "fewer bytes",
        f"s to {metric.text(value)}",
        f"MB to {metric.text(value)}",
    ]
    yield f"| algorithm | codec | {' | '.join(heads)} |"
    yield f"| --- | --- |{' --: |' * len(heads)}"
    for each, spent in zip(ordered, costs([table]), strict=True):
        row, megabytes = rows[each.label], sent[each.label]
        ends = fmean(curve.final.time for curve in each.curves.values())
        cells = [f"`{each.algorithm}`", f"`{_codec(each.label)}`", points(row.final)]
        cells += [_beside(row, rows[_without(each.algorithm)]), f"{ends:,.0f}"]
        cells += [f"{megabytes:,.0f}", f"{whole / megabytes:.1f}x", *spent]
        yield f"| {' | '.join(cells)} |"


def _codec(label: str) -> str:
    return label.partition(_KEY)[2]


def _without(algorithm: str) -> str:
    """Return the label of an algorithm without a codec."""
    return f"{algorithm}{_KEY}{_CODECS[0]}"


def _megabytes(series: Series) -> float:
    """Return what a run sends in all, both ways."""
    return fmean(curve.final.num_bytes for curve in series.curves.values()) / _MB


def _beside(row: Row, base: Row) -> str:
    """Return by how many points it ends higher, seed by seed."""
    finals = base.finals
    spread = Spread.of(v - finals[s] for s, v in row.finals.items() if s in finals)
    if row is base or spread is None:
        return NONE
    text = points(spread)
    return text if text.startswith("-") else f"+{text}"
