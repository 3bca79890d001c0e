"""Which data sets are there."""

from collections.abc import Iterator
from pathlib import Path

from flwr_asyncdrop.app.data.catalogue import CATALOGUE
from flwr_asyncdrop.app.data.files import Source
from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning


def check_data(data_dir: Path | None) -> Iterator[Finding]:
    """Look for the files of every data set; they are not read."""
    if data_dir is None:
        yield ok("data", "digits is embedded; --data-dir looks for the others")
        return
    if not data_dir.is_dir():
        yield problem(
            "data", f"there is no folder {data_dir}", "give the folder of the data sets"
        )
        return
    yield ok("digits", "embedded")
    for name, entry in CATALOGUE.items():
        if entry.sources:
            yield _check(name, entry.sources, data_dir)


def _check(name: str, sources: tuple[Source, ...], data_dir: Path) -> Finding:
    for source in sources:
        folder = source.locate(data_dir)
        if not source.missing(folder):
            return ok(name, str(folder))
    folders = " or ".join(dict.fromkeys(source.folder for source in sources))
    download = ", or give a run --download" if sources[0].torchvision else ""
    return warning(
        name,
        f"not found in {data_dir}",
        f"put its files into {folders} there{download}",
    )
