"""How pictures look, and how they are saved."""

from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flwr_asyncdrop.storage.whole import write_whole

# Okabe and Ito's palette, safe for colour-blind readers.
BLUE: Final = "#0072B2"
SKY: Final = "#8CC9EE"
ORANGE: Final = "#E69F00"
RED: Final = "#D55E00"
GREY: Final = "#8A8A8A"
INK: Final = "#222222"

# Nothing that tells the time or the version of Matplotlib.
_NO_METADATA: Final[Mapping[str, Mapping[str, None]]] = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None},
}

_FONT: Final = "DejaVu Sans"  # which comes with Matplotlib

STYLE: Final[dict[str, Any]] = {
    "font.family": _FONT,
    "font.size": 9,
    "text.color": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "pdf.fonttype": 42,  # TrueType: what venues ask for
    "text.parse_math": False,  # a label may have dollars
    "svg.hashsalt": "asyncdrop",
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 8.5,
}


def save(
    draw: Callable[[], Figure], path: Path, *, dpi: int, **settings: object
) -> Path:
    """Draw a figure in our style and write it, the same bytes for the same figure.

    The suffix of `path` is the format: ``.png``, ``.pdf`` or ``.svg``. `settings` are
    Matplotlib's, with ``_`` for the dots.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    more = {name.replace("_", "."): value for name, value in settings.items()}
    data = BytesIO()
    kind = path.suffix.removeprefix(".")
    with style.context(["default", {**STYLE, **more}]):
        figure = draw()
        for text in figure.findobj(Text):
            text.set_text(drawable(text.get_text()))
        figure.savefig(data, dpi=dpi, format=kind, metadata=dict(_NO_METADATA[kind]))
    return write_whole(path, data.getvalue())


def drawable(text: str) -> str:
    """Return a text with escapes, as Python's, for what our font does not have.

    All of that would be the same empty box. Another font would be another picture.
    """
    return "".join(each if _has(each) else _escape(each) for each in text)


@cache
def _has(character: str) -> bool:
    font = get_font(findfont(_FONT))
    return character == "\n" or bool(font.get_char_index(ord(character)))


def _escape(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()


def say_none(axes: Axes, text: str) -> None:
    """Say in the middle of an empty panel why it is empty."""
    axes.set(xticks=[], yticks=[])
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY
    )


def colour_bar(
    axes: Axes, colours: ScalarMappable, label: str, *, shares: bool = False
) -> None:
    """Explain the colours at the right of a panel: shares in per cent, or counts."""
    bar = axes.figure.colorbar(colours, ax=axes, pad=0.015, aspect=28, fraction=0.05)
    bar.set_label(label)
    bar.outline.set_visible(False)
    if shares:
        bar.formatter = PercentFormatter(1.0, decimals=0)
    else:
        bar.locator = MaxNLocator(6, integer=True)
    bar.update_ticks()
