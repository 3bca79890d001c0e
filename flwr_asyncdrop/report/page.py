"""A report as one HTML page that needs nothing else."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.pictures import Picture
from flwr_asyncdrop.report.tables import columns, notes

_TEMPLATE = "page.html"


def render_page(
    title: str,
    facts: Sequence[str],
    comparison: Comparison,
    pictures: Sequence[Picture],
    runs: Mapping[str, Sequence[Picture]],
) -> str:
    """Return the page.

    `facts` is what all runs have in common; `pictures` stand below the table; `runs`
    has the pictures of one run of each label.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(_TEMPLATE).render(
        title=title,
        metric=comparison.target.metric.title.capitalize(),
        facts=facts,
        columns=columns(comparison),
        reference=comparison.reference,
        notes=notes(comparison),
        figures=_inlined(pictures),
        runs={label: _inlined(of_run) for label, of_run in runs.items()},
    )


def _inlined(pictures: Sequence[Picture]) -> list[dict[str, str]]:
    """Return pictures with their bytes in the source."""
    return [
        {
            "source": "data:image/png;base64,"
            + b64encode(picture.path.read_bytes()).decode(),
            "caption": picture.caption,
        }
        for picture in pictures
    ]
