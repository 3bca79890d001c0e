"""Train the network of Theorem 1 and plot its error beside the bound.

``python theorem1.py --out DIR`` writes ``theorem1.png`` and the table ``theorem1.md``.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onelayer.bound import Bound
from onelayer.figure import draw
from onelayer.measure import floors
from onelayer.network import Data, make_data
from onelayer.sweeps import BASE, CHECKS, PANELS, settings_of
from onelayer.table import table
from onelayer.training import Run, Setting, train


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all settings, then write the figure and the table."""
    options = _parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = settings_of((*PANELS, *CHECKS))
    data = {
        n: make_data(n, options.seed)
        for n in {setting.examples for setting in settings}
    }
    runs = {
        setting: train(
            setting,
            data[setting.examples],
            iterations=options.iterations,
            repeats=options.repeats,
            seed=options.seed,
        )
        for setting in settings
    }
    bounds = _fitted(runs, data)
    draw(runs, bounds[BASE.examples], options.out / "theorem1.png")
    (options.out / "theorem1.md").write_text(table(runs, bounds))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seed", type=int, default=0, help="of data, starts and masks")
    parser.add_argument("--repeats", type=int, default=6, help="networks a setting")
    parser.add_argument("--iterations", type=int, default=5000, help="updates of each")
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.iterations < 1:
        parser.error("--repeats and --iterations must be at least 1")
    return options


def _fitted(runs: dict[Setting, Run], data: dict[int, Data]) -> dict[int, Bound]:
    """Return the bound for each data set, all with the constant of the panels' runs."""
    bounds = {examples: Bound.of(some) for examples, some in data.items()}
    means = {
        setting: float(floors(runs[setting]).mean()) for setting in settings_of(PANELS)
    }
    constant = bounds[BASE.examples].fitted(means).constant
    return {n: replace(bound, constant=constant) for n, bound in bounds.items()}


if __name__ == "__main__":
    main()
