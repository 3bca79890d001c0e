"""The table of a comparison for programs: as JSON and CSV."""

import csv
import io
from dataclasses import asdict
from typing import Any

from flwr_asyncdrop.report.comparison import Comparison, Row, Spread
from flwr_asyncdrop.report.intervals import Interval


def json_values(comparison: Comparison) -> dict[str, Any]:
    """Return everything, seed by seed too, as JSON values; accuracies are shares."""
    target = comparison.target
    return {
        "target": {target.metric.key: target.value, "rule": target.rule},
        "reference": comparison.reference,
        "rows": [_json_row(row, comparison) for row in comparison.rows],
    }


def csv_text(comparison: Comparison) -> str:
    """Return one line a label, with plain numbers; empty where there is none."""
    text = io.StringIO()
    lines = [_csv_row(row, comparison) for row in comparison.rows]
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _costs(row: Row, comparison: Comparison) -> dict[str, Spread | None]:
    """Return what it took to reach the target, by the names in files."""
    energy = {"joules": row.joules} if comparison.counts_energy else {}
    return {"seconds": row.seconds, "bytes": row.num_bytes, **energy}


def beside_reference(row: Row, comparison: Comparison) -> dict[str, Interval | None]:
    """Return the differences and overheads, by the names in files."""
    energy = {"energy_overhead": row.energy_overhead}
    return {
        "final_difference": row.final_difference,
        "time_overhead": row.time_overhead,
        "byte_overhead": row.byte_overhead,
        **(energy if comparison.counts_energy else {}),
    }


def _json_row(row: Row, comparison: Comparison) -> dict[str, Any]:
    metric = comparison.target.metric
    parts = {**_costs(row, comparison), **beside_reference(row, comparison)}
    return {
        "label": row.label,
        "algorithm": row.algorithm,
        "incomplete": list(row.incomplete),
        f"{metric.extreme}_{metric.key}": _asdict(row.best),
        f"final_{metric.key}": _asdict(row.final),
        "reached": len(row.arrivals),
        **{name: _asdict(part) for name, part in parts.items()},
        "seeds": {str(seed): o.json_values() for seed, o in row.outcomes.items()},
    }


def _csv_row(row: Row, comparison: Comparison) -> dict[str, object]:
    metric = comparison.target.metric
    best, final = f"{metric.extreme}_{metric.key}", f"final_{metric.key}"
    values: dict[str, object] = {
        "label": _no_formula(row.label),
        "seeds": len(row.outcomes),
        "reached": len(row.arrivals),
        best: row.best and row.best.mean,
        f"{best}_std": row.best and row.best.std,
        final: row.final and row.final.mean,
        f"{final}_std": row.final and row.final.std,
    }
    for name, cost in _costs(row, comparison).items():
        values[name] = cost and cost.mean
    for name, found in beside_reference(row, comparison).items():
        values |= _csv_interval(name, found)
    return values


def _no_formula(text: str) -> str:
    """Return a text that no spreadsheet runs: with a sign that it does not show."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _csv_interval(name: str, found: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if found is None else (found.low, found.high)
    value = None if found is None else found.value
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _asdict(spread: Spread | Interval | None) -> dict[str, Any] | None:
    return None if spread is None else asdict(spread)
