"""The table: rates and floors, measured and stated."""

from collections.abc import Iterator, Mapping

from onelayer.bound import Bound, kernel_rate
from onelayer.measure import floors, offset, rate
from onelayer.sweeps import BASE, CHECKS, PANELS, Sweep
from onelayer.training import Run, Setting

__all__ = ["table"]

_HEAD = (
    "| | rate: bound | kernel | measured | floor: bound | measured | offset |",
    "|---|---|---|---|---|---|---|",
)


def table(runs: Mapping[Setting, Run], bounds: Mapping[int, Bound]) -> str:
    """Write the table in Markdown.

    Parameters
    ----------
    runs : mapping of Setting to Run
        All settings of `PANELS` and `CHECKS`.
    bounds : mapping of int to Bound
        For each number of examples, its constant fitted.

    Returns
    -------
    str
        A row for each setting, rates in thousandths an update; ends with a newline.
    """
    rows = [row for sweep in (*PANELS, *CHECKS) for row in _rows(sweep, runs, bounds)]
    return "\n".join([*_HEAD, *rows, ""])


def _rows(
    sweep: Sweep, runs: Mapping[Setting, Run], bounds: Mapping[int, Bound]
) -> Iterator[str]:
    others = "".join(
        f", {symbol} = {getattr(sweep.base, name):g}"
        for name, symbol in {"delay": "E", "keep": "ξ", "devices": "S"}.items()
        if getattr(sweep.base, name) != getattr(BASE, name)
    )
    for value, setting in zip(sweep.values, sweep.settings, strict=True):
        run, bound = runs[setting], bounds[setting.examples]
        cells = [
            f"{sweep.symbol} = {value:g}{others}",
            f"{1000 * bound.rate(setting):.2f}",
            f"{1000 * kernel_rate(setting, run.kernel_eigenvalue):.2f}",
            f"{1000 * rate(run):.2f}",
            f"{bound.floor(setting):.2g}",
            f"{floors(run).mean():.2g}",
            f"{offset(run):.2g}",
        ]
        yield f"| {' | '.join(cells)} |"
