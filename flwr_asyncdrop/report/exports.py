"""A comparison for other programs: CSV and JSON."""

import csv
import io
from dataclasses import asdict
from typing import Any

from flwr_asyncdrop.report.comparison import Comparison, Row, Spread


def json_values(comparison: Comparison) -> dict[str, Any]:
    """Return everything, seed by seed too, as JSON values; accuracies are shares."""
    return {
        "target": asdict(comparison.target),
        "reference": comparison.reference,
        "rows": [_json_row(row) for row in comparison.rows],
    }


def csv_text(comparison: Comparison) -> str:
    """Return one line a label, with plain numbers; empty where there is none."""
    text = io.StringIO()
    lines = [_csv_row(row) for row in comparison.rows]
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json_row(row: Row) -> dict[str, Any]:
    outcomes = row.outcomes.items()
    return {
        "label": row.label,
        "algorithm": row.algorithm,
        "incomplete": list(row.incomplete),
        "max_accuracy": _asdict(row.best),
        "final_accuracy": _asdict(row.final),
        "reached": len(row.arrivals),
        "seconds": _asdict(row.seconds),
        "bytes": _asdict(row.num_bytes),
        "time_overhead": row.time_overhead,
        "byte_overhead": row.byte_overhead,
        "seeds": {str(seed): asdict(outcome) for seed, outcome in outcomes},
    }


def _csv_row(row: Row) -> dict[str, object]:
    return {
        "label": row.label,
        "seeds": len(row.outcomes),
        "reached": len(row.arrivals),
        "max_accuracy": row.best and row.best.mean,
        "max_accuracy_std": row.best and row.best.std,
        "final_accuracy": row.final and row.final.mean,
        "final_accuracy_std": row.final and row.final.std,
        "seconds": row.seconds and row.seconds.mean,
        "bytes": row.num_bytes and row.num_bytes.mean,
        "time_overhead": row.time_overhead,
        "byte_overhead": row.byte_overhead,
    }


def _asdict(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else asdict(spread)
