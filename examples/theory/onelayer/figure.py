"""The figure: errors over iterations, and floors, beside the bound."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flwr_asyncdrop.report.style import BLUE, GREY, INK, STYLE
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

from onelayer.bound import Bound
from onelayer.measure import floors, offset
from onelayer.sweeps import BASE, PANELS, Sweep
from onelayer.training import Run, Setting

__all__ = ["draw"]

_TITLES = {
    "delay": "Delay of gradients, E",
    "keep": "Keep probability, ξ",
    "devices": "Devices a group, S",
    "width": "Width, m",
}


def draw(runs: Mapping[Setting, Run], bound: Bound, png: Path) -> None:
    """Draw the panels of `PANELS`.

    Parameters
    ----------
    runs : mapping of Setting to Run
        At least the settings of `PANELS`.
    bound : Bound
        Its constant fitted.
    png : Path
        The picture; an old file is replaced. The same runs give the same bytes.
    """
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(13, 6.9), dpi=130, layout="constrained")
        figure.suptitle(_caption(bound), x=0.008, ha="left", fontsize=9.5, color=INK)
        axes = figure.subplots(2, len(PANELS), sharey="row")
        for (above, below), sweep in zip(axes.T, PANELS, strict=True):
            _draw_errors(above, sweep, runs, bound)
            _draw_floors(below, sweep, runs, bound)
        axes[0, 0].set(ylabel="squared error $\\|u_t - y\\|^2$", ylim=(3e-6, 20))
        axes[1, 0].set(ylabel="floor: mean of the last quarter")
        axes[1, 0].legend(loc="upper left")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    # A palette makes it a third as large, and nobody sees the difference.
    picture.quantize(256, dither=Image.Dither.NONE).save(png, optimize=True)


def _caption(bound: Bound) -> str:
    return (
        "Theorem 1 measured. Solid: mean of the networks, band from lowest to highest. "
        f"Dashed: the bound, its one constant {bound.constant:.2g}.\n"
        f"Where not varied: E = {BASE.delay}, ξ = {BASE.keep:g}, S = {BASE.devices}, "
        f"m = {BASE.width}; n = {BASE.examples}, κ = {BASE.init_scale:g}, "
        f"η = {BASE.step_size:g}, λ₀ = {bound.lambda_0:.4f}."
    )


def _draw_errors(
    axes: Axes, sweep: Sweep, runs: Mapping[Setting, Run], bound: Bound
) -> None:
    colours = colormaps["viridis"](np.linspace(0, 0.85, len(sweep.values)))
    for value, setting, colour in zip(
        sweep.values, sweep.settings, colours, strict=True
    ):
        run = runs[setting]
        time, errors = run.iterations, run.errors
        mean = errors.mean(axis=1)
        lowest, highest = errors.min(axis=1), errors.max(axis=1)
        band = {"color": colour, "alpha": 0.15, "linewidth": 0}
        axes.fill_between(time, lowest, highest, **band)
        axes.plot(time, mean, color=colour, label=f"{sweep.symbol} = {value:g}")
        curve = bound.curve(setting, mean[0], time)
        axes.plot(time, curve, color=colour, linestyle="--", linewidth=1)
    axes.set(title=_TITLES[sweep.name], xlabel="iteration t", yscale="log")
    axes.legend(loc="upper right", labelspacing=0.25)


def _draw_floors(
    axes: Axes, sweep: Sweep, runs: Mapping[Setting, Run], bound: Bound
) -> None:
    # Where nothing is dropped the error falls to rounding: there is no floor to draw.
    pairs = zip(sweep.values, sweep.settings, strict=True)
    dropping = [(value, setting) for value, setting in pairs if setting.keep < 1]
    values, settings = zip(*dropping, strict=True)
    measured = np.array([floors(runs[setting]) for setting in settings])
    mean = measured.mean(axis=1)
    below, above = mean - measured.min(axis=1), measured.max(axis=1) - mean
    offsets = [offset(runs[setting]) for setting in settings]
    bounds = [bound.floor(setting) for setting in settings]
    axes.plot(values, bounds, "--", color=BLUE, label="bound")
    axes.plot(values, mean, "o-", color=BLUE, markersize=5, label="measured")
    axes.errorbar(values, mean, (below, above), fmt="none", ecolor=BLUE, capsize=3)
    axes.plot(
        values,
        offsets,
        "o-",
        color=GREY,
        markersize=3,
        linewidth=1,
        label="its part that is offset",
    )
    axes.set(xlabel=sweep.symbol, yscale="log")
    if sweep.name in {"devices", "width"}:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, [f"{value:g}" for value in values])
