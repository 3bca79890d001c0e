"""What a comparison came to, in a few lines."""

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from flwr_asyncdrop.cli.runs import HISTORY
from flwr_asyncdrop.history import read_history
from flwr_asyncdrop.report.runlog import RunLog

__all__ = ["table"]


def table(folders: Iterable[Path]) -> Iterator[str]:
    """Yield a line for every label: best and final metric, mean ± std of its seeds.

    Parameters
    ----------
    folders : iterable of Path
        Folders of runs, ``LABEL/seed-N``; those without a whole history are left out.
    """
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for folder in folders:
        if not (folder / HISTORY).exists():
            continue
        log = RunLog.from_records(read_history(folder / HISTORY))
        if log.end is not None and log.curve is not None:
            row = log.curve.best.value, log.curve.final.value, log.time
            curves.setdefault(folder.parent.name, []).append(row)
    width = max([len(label) for label in curves], default=0)
    for label, rows in curves.items():
        best, final, seconds = zip(*rows, strict=True)
        yield (
            f"{label:<{width}}  best {_spread(best)}  final {_spread(final)}  "
            f"{statistics.mean(seconds):,.0f} s  {len(rows)} seeds"
        )


def _spread(values: tuple[float, ...]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"
