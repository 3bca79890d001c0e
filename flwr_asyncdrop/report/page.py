"""The page that holds a whole report."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.pagedata import page_data
from flwr_asyncdrop.report.pictures import over_seeds
from flwr_asyncdrop.report.provenance import what_made
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.tables import columns, notes

if TYPE_CHECKING:
    from flwr_asyncdrop.report.pictures import Picture

_FILES: Final = Path(__file__).parent / "page_files"
_SCRIPTS: Final = ("numbers.js", "table.js", "plot.js", "controls.js")
_COLOURS: Final = 128  # of a picture in the page: its drawings have fewer
# What a page says of its runs, if they have it in common.
_FACTS: Final = (
    ("in_flight", "{} in flight"),
    ("partition", "partition {}"),
)


def render_page(
    series: Sequence[Series],
    comparison: Comparison,
    pictures: Sequence["Picture"],
    runs: Mapping[str, Sequence["Picture"]],
    folders: Sequence[str],
) -> str:
    """Return a page that needs nothing else.

    `pictures` stand for the plot where no script runs, `runs` has those of the fleet by
    label, and `folders` are the names of those with the results.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_FILES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    metric = comparison.target.metric
    first = next(log for one in series for log in one.runs.values())
    # Files of ours, and JSON that cannot end its element.
    style, script, data = map(
        Markup,
        (
            _text("page.css"),
            "\n".join(map(_text, _SCRIPTS)),
            page_data(series, comparison),
        ),
    )
    return environment.get_template("template.html").render(
        title=_title(series),
        metric=metric.heading,
        is_share=metric.is_share,
        time_label=first.time_label,
        caption=f"{metric.heading}: {over_seeds(series)}.",
        facts=list(_facts(series)),
        columns=columns(comparison),
        reference=comparison.reference,
        counts_energy=comparison.counts_energy,
        notes=notes(comparison),
        figures=_inlined(pictures),
        runs={label: _inlined(of_run) for label, of_run in runs.items()},
        made=what_made(series, comparison, folders),
        style=style,
        script=script,
        data=data,
    )


def _text(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _inlined(pictures: Sequence["Picture"]) -> list[dict[str, str]]:
    found = []
    for picture in pictures:
        data = b64encode(_with_few_colours(picture.path)).decode()
        source = f"data:image/png;base64,{data}"
        alt = picture.alt or picture.caption
        found.append({"source": source, "caption": picture.caption, "alt": alt})
    return found


def _with_few_colours(png: Path) -> bytes:
    """Return a picture with a palette, in about a third of its bytes."""
    from PIL import Image

    data = BytesIO()
    with Image.open(png) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        few.save(data, "PNG", optimize=True)
    return data.getvalue()


def _title(series: Sequence[Series]) -> str:
    names = [_common(series, name) for name in ("dataset", "model")]
    task = " with ".join(name for name in names if name is not None)
    labels = f"{len(series)} algorithms" if len(series) > 1 else series[0].label
    return f"{labels} on {task}" if task else labels


def _facts(series: Sequence[Series]) -> Iterator[str]:
    if devices := _common(series, "devices"):
        yield f"{devices} {'device' if devices == '1' else 'devices'}"
    for name, text in _FACTS:
        if value := _common(series, name):
            yield text.format(value)
    count = sum(len(one.runs) for one in series)
    yield counted(count, "run")


def _common(series: Sequence[Series], name: str) -> str | None:
    """Return a fact if it is the same in all complete runs."""
    logs = [log for one in series for log in one.runs.values()]
    values = {str(log.fact(name)) for log in logs if log.fact(name) is not None}
    return values.pop() if len(values) == 1 else None
