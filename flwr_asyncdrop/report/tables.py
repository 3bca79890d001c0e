"""A comparison as a table: its columns and notes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from flwr_asyncdrop.readable import some, three_digits
from flwr_asyncdrop.report.best import best_costs, best_scores
from flwr_asyncdrop.report.comparable import name_of
from flwr_asyncdrop.report.comparison import Comparison, Row, Spread
from flwr_asyncdrop.report.intervals import FEWEST, Interval
from flwr_asyncdrop.report.runlog import Point, joules_of
from flwr_asyncdrop.report.table_files import beside_reference

_NONE = "N/A"
_BYTES_PER_MB = 1e6
_JOULES_PER_KJ = 1e3
_MOST_NAMED = 8

_Cell = tuple[str, float | None]


@dataclass(frozen=True)
class Column:
    """A column: its heading, its texts, and the numbers behind them to sort by.

    The numbers are None where there is none, and throughout in the column of names.
    `best` says which rows are the best in it, none in a column without winners. `key`
    names the column whatever the target is.
    """

    key: str
    title: str
    texts: tuple[str, ...]
    values: tuple[float | None, ...]
    best: tuple[bool, ...]


def dealt(
    figures: Sequence[Column], room: int, width: Callable[[Column], int]
) -> Iterator[list[Column]]:
    """Deal columns to as few tables as have so much room each, in their order."""
    part: list[Column] = []
    left = room
    for column in figures:
        needed = width(column)
        if part and needed > left:
            yield part
            part, left = [], room
        part.append(column)
        left -= needed
    yield part


def columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the columns of the table, in the order of the paper's.

    Accuracies are in per cent, time in seconds on the runs' clock, bytes in MB, energy
    in kJ; it has columns only if all runs count it.
    """
    target, metric = comparison.target, comparison.target.metric
    to = f"to {metric.text(target.value)}"

    def column(
        key: str,
        title: str,
        cell: Callable[[Row], _Cell],
        best: tuple[bool, ...] | None = None,
    ) -> Column:
        texts, values = zip(*map(cell, comparison.rows), strict=True)
        nobody = tuple(False for _ in comparison.rows)
        return Column(key, title, texts, values, best or nobody)

    def score(of: Callable[[Row], Spread | None]) -> Callable[[Row], _Cell]:
        spreads = filter(None, map(of, comparison.rows))
        write = metric.writer(spread.mean for spread in spreads)

        def cell(row: Row) -> _Cell:
            if (spread := of(row)) is None:
                return _NONE, None
            std = f" ± {write(spread.std)}" if spread.count > 1 else ""
            return f"{write(spread.mean)}{std}", spread.mean

        return cell

    def beside(
        row: Row, found: Interval | None, write: Callable[[float], str]
    ) -> _Cell:
        if row.label == comparison.reference:
            return "reference", 0.0
        if found is None:
            return _NONE, None
        return _interval_text(found, write), found.value

    differences = filter(None, (row.final_difference for row in comparison.rows))
    signed = partial(metric.writer(each.value for each in differences), sign="+")

    def difference(row: Row) -> _Cell:
        return beside(row, row.final_difference, signed)

    def overhead(row: Row, found: Interval | None) -> _Cell:
        return beside(row, found, "{:+.1%}".format)

    def cheapest(cost: Callable[[Point], float]) -> tuple[bool, ...]:
        def costs(row: Row) -> dict[int, float]:
            return {seed: cost(point) for seed, point in row.arrivals.items()}

        return best_costs(comparison, costs)

    made = (
        column("label", "algorithm", lambda row: (row.label, None)),
        column("seeds", "seeds", _seeds),
        column(
            "best",
            f"{metric.extreme}. {metric.title}",
            score(lambda row: row.best),
            best_scores(comparison, _bests),
        ),
        column(
            "final",
            f"final {metric.title}",
            score(lambda row: row.final),
            best_scores(comparison, lambda row: row.finals),
        ),
        column("difference", "beside the reference", difference),
        column(
            "seconds",
            f"s {to}",
            lambda row: _cost(row, row.seconds, "{:,.1f}".format),
            cheapest(lambda point: point.time),
        ),
        column(
            "bytes",
            f"MB {to}",
            lambda row: _cost(row, row.num_bytes, three_digits, _BYTES_PER_MB),
            cheapest(lambda point: point.num_bytes),
        ),
        column(
            "joules",
            f"kJ {to}",
            lambda row: _cost(row, row.joules, three_digits, _JOULES_PER_KJ),
            cheapest(joules_of),
        ),
        column(
            "time_overhead",
            "time overhead",
            lambda row: overhead(row, row.time_overhead),
        ),
        column(
            "byte_overhead",
            "comm. overhead",
            lambda row: overhead(row, row.byte_overhead),
        ),
        column(
            "energy_overhead",
            "energy overhead",
            lambda row: overhead(row, row.energy_overhead),
        ),
    )
    left_out = () if comparison.counts_energy else ("joules", "energy_overhead")
    return tuple(each for each in made if each.key not in left_out)


def _bests(row: Row) -> dict[int, float]:
    return {seed: outcome.best for seed, outcome in row.outcomes.items()}


def _seeds(row: Row) -> _Cell:
    extra = f" +{len(row.incomplete)}" if row.incomplete else ""
    return f"{len(row.outcomes)}{extra}", len(row.outcomes)


def _cost(
    row: Row, spread: Spread | None, text: Callable[[float], str], unit: float = 1.0
) -> _Cell:
    """Return a cost, and in its text how many seeds had it if not all did."""
    if spread is None:
        return _NONE, None
    seeds = len(row.outcomes)
    share = f" ({spread.count}/{seeds})" if spread.count < seeds else ""
    return f"{text(spread.mean / unit)}{share}", spread.mean


def notes(comparison: Comparison) -> tuple[str, ...]:
    """Return what has to be said below the table."""
    target = comparison.target
    said = [
        f"Target: {target.metric.text(target.value)} ({target.rule}). "
        "Mean ± sample standard deviation over seeds."
    ]
    if sum(bool(row.outcomes) for row in comparison.rows) > 1:
        if comparison.reference is not None:
            said.append(
                f"The reference is {comparison.reference}: differences are seed by "
                "seed, overheads on the seeds with which both reached the target."
            )
            said += _about_intervals(comparison)
        said.append(_about_bold(comparison))
    if len({frozenset(row.outcomes) for row in comparison.rows if row.outcomes}) > 1:
        said.append(
            "Not all have the same seeds: means are over those that each has, "
            "differences over those that it shares with the reference."
        )
    for row in comparison.rows:
        if row.diverged:
            seeds = ", ".join(map(str, row.diverged))
            said.append(
                f"{row.label} diverged with seed {seeds}: its last evaluation has no "
                f"finite {target.metric.title}."
            )
    if comparison.differing:
        said.append(
            f"Not all have the same {', '.join(comparison.differing)}: the rows differ "
            "in more than their algorithms."
        )
    said += [
        f"The runs of {row.label} differ in {', '.join(row.differing)}, so that its "
        "means are over several settings."
        for row in comparison.rows
        if row.differing
    ]
    if any(0 < len(row.arrivals) < len(row.outcomes) for row in comparison.rows):
        said.append("(m/n): m of n seeds reached the target, and only they count.")
    said += _about_incomplete(comparison)
    return tuple(said)


def _about_incomplete(comparison: Comparison) -> Iterator[str]:
    runs = [
        name_of(row.label, seed) for row in comparison.rows for seed in row.incomplete
    ]
    if runs:
        count = "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
        yield f"{count} incomplete (+) and left out: {some(runs, _MOST_NAMED)}."


def _about_intervals(comparison: Comparison) -> Iterator[str]:
    found = [
        each
        for row in comparison.rows
        if row.label != comparison.reference
        for each in beside_reference(row, comparison).values()
        if each is not None
    ]
    if any(each.low is not None for each in found):
        yield (
            "[low, high]: 95 % bootstrap intervals over seeds. Only what has a * is a "
            "difference: its interval lies on one side of zero."
        )
    elif found:
        yield f"No intervals: they take {FEWEST} seeds, and less is no evidence."


def _about_bold(comparison: Comparison) -> str:
    said = "Bold: the best of its column, of those that have it with every seed"
    if any(len(row.outcomes) >= FEWEST for row in comparison.rows):
        said += ", and what an interval over seeds cannot tell apart from it"
    return f"{said}."


def _interval_text(found: Interval, write: Callable[[float], str]) -> str:
    text = write(found.value)
    if found.low is None or found.high is None:
        return text
    bounds = f"[{write(found.low)}, {write(found.high)}]"
    return f"{text} {bounds}{'*' if found.is_clear else ''}"
