"""A comparison for other programs: CSV and JSON."""

import csv
import io
from dataclasses import asdict
from typing import Any

from flwr_asyncdrop.report.comparison import Comparison, Row, Spread
from flwr_asyncdrop.report.metric import Metric


def json_values(comparison: Comparison) -> dict[str, Any]:
    """Return everything, seed by seed too, as JSON values; accuracies are shares."""
    target = comparison.target
    return {
        "target": {target.metric.name: target.value, "rule": target.rule},
        "reference": comparison.reference,
        "rows": [_json_row(row, target.metric) for row in comparison.rows],
    }


def csv_text(comparison: Comparison) -> str:
    """Return one line a label, with plain numbers; empty where there is none."""
    text = io.StringIO()
    lines = [_csv_row(row, comparison.target.metric) for row in comparison.rows]
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json_row(row: Row, metric: Metric) -> dict[str, Any]:
    outcomes = row.outcomes.items()
    return {
        "label": row.label,
        "algorithm": row.algorithm,
        "incomplete": list(row.incomplete),
        f"{metric.extreme}_{metric.name}": _asdict(row.best),
        f"final_{metric.name}": _asdict(row.final),
        "reached": len(row.arrivals),
        "seconds": _asdict(row.seconds),
        "bytes": _asdict(row.num_bytes),
        "time_overhead": row.time_overhead,
        "byte_overhead": row.byte_overhead,
        "seeds": {str(seed): asdict(outcome) for seed, outcome in outcomes},
    }


def _csv_row(row: Row, metric: Metric) -> dict[str, object]:
    best, final = f"{metric.extreme}_{metric.name}", f"final_{metric.name}"
    return {
        "label": row.label,
        "seeds": len(row.outcomes),
        "reached": len(row.arrivals),
        best: row.best and row.best.mean,
        f"{best}_std": row.best and row.best.std,
        final: row.final and row.final.mean,
        f"{final}_std": row.final and row.final.std,
        "seconds": row.seconds and row.seconds.mean,
        "bytes": row.num_bytes and row.num_bytes.mean,
        "time_overhead": row.time_overhead,
        "byte_overhead": row.byte_overhead,
    }


def _asdict(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else asdict(spread)
