"""A report as one HTML page that needs nothing else."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.pictures import Picture
from flwr_asyncdrop.report.tables import columns, notes

_TEMPLATE = "page.html"


@dataclass(frozen=True)
class _Figure:
    source: str
    caption: str


def render_page(
    title: str,
    facts: Sequence[str],
    comparison: Comparison,
    pictures: Sequence[Picture],
    runs: Mapping[str, Sequence[Picture]],
) -> str:
    """Return the page.

    Parameters
    ----------
    title : str
        Its heading.
    facts : sequence of str
        What all runs have in common.
    comparison : Comparison
        The table.
    pictures : sequence of Picture
        What stands below the table.
    runs : mapping of str to sequence of Picture
        The pictures of one run of each label; read when the page is made, and put
        into it.
    """
    environment = Environment(
        loader=PackageLoader("flwr_asyncdrop.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(_TEMPLATE).render(
        title=title,
        facts=facts,
        columns=columns(comparison),
        reference=comparison.reference,
        notes=notes(comparison),
        figures=_inlined(pictures),
        runs={label: _inlined(of_run) for label, of_run in runs.items()},
    )


def _inlined(pictures: Sequence[Picture]) -> list[_Figure]:
    return [
        _Figure(
            f"data:image/png;base64,{b64encode(picture.path.read_bytes()).decode()}",
            picture.caption,
        )
        for picture in pictures
    ]
