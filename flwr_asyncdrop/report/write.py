"""From histories to pictures and reports.

What draws is imported when it is needed: it takes the extra ``report``.
"""

import json
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from flwr_asyncdrop.extras import require
from flwr_asyncdrop.parameters import A_SWITCH
from flwr_asyncdrop.paths import AnyPath, as_path, tidied
from flwr_asyncdrop.report.comparison import Comparison, compare
from flwr_asyncdrop.report.drawing import require_matplotlib
from flwr_asyncdrop.report.reading import read_log
from flwr_asyncdrop.report.series import Series, read_series
from flwr_asyncdrop.storage.lock import FolderLock
from flwr_asyncdrop.storage.whole import changing, drafts_of, write_whole

_PAGE, _PAPER, _LOCK = "report.html", "paper", ".report.lock"
# Where they are, and of which kind.
_PICTURES = {("", ".png"), *((_PAPER, kind) for kind in (".pdf", ".svg", ".tex"))}

if TYPE_CHECKING:
    from flwr_asyncdrop.report.terminal import TerminalTable


def draw_run(history: AnyPath, png: AnyPath) -> Path:
    """Draw a run, ended or not, for a slide: metric, updates by speed, and bytes.

    Parameters
    ----------
    history : str or Path
        The ``history.jsonl`` of a run.
    png : str or Path
        Where the picture goes. The same history gives the same bytes.

    Returns
    -------
    Path
        `png`.

    Raises
    ------
    DataError
        If the history cannot be read, or is damaged.
    MissingExtraError
        If Matplotlib is not installed, or does not know what MPLBACKEND names.
    """
    require_matplotlib()
    from flwr_asyncdrop.report.pictures import draw_log

    log = read_log(as_path("path", history))
    return draw_log(log, as_path("png", png))


def comparison_table(
    folders: Sequence[AnyPath],
    target: str | float = "auto",
    reference: str | None = None,
) -> "TerminalTable":
    """Compare the runs of some folders in tables for the terminal, which Rich prints.

    The parameters and errors are those of `write_report`.
    """
    require("rich", "report")
    from flwr_asyncdrop.report.terminal import TerminalTable

    series = read_series(_as_paths(folders))
    return TerminalTable(compare(series, target, reference))


def write_report(
    folders: Sequence[AnyPath],
    out: AnyPath,
    *,
    target: str | float = "auto",
    reference: str | None = None,
    paper: bool = False,
) -> Path:
    """Report on the runs of some folders: table, pictures, and a page with both.

    Parameters
    ----------
    folders : sequence of str or Path
        Folders with ``LABEL/seed-N/history.jsonl``, of one data set and metric.
    out : str or Path
        Where the files go: ``report.html``, which holds everything, ``table.md``,
        ``table.csv``, ``table.json``, and the pictures one by one.
    target : str or float
        The value of the metric to which time and bytes are counted: a number;
        ``"auto"``, the paper's rule: the second-lowest maximum of the baselines, or
        ``"0.95best"`` if there are fewer than three; or a factor and ``"best"``, e.g.
        ``"0.95best"``: that share of the best final value of a baseline. Of a metric
        that falls, highest and lowest change places.
    reference : str, optional
        The label that overheads are relative to: by default ``hetero-asyncdrop``, as
        in the paper, or the first to reach the target if that was not run.
    paper : bool
        Whether the folder ``paper`` of `out` gets the figures as PDF and SVG, 3.3
        inches wide, and ``table.tex``, for LaTeX with the package booktabs.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    DataError
        If the runs cannot be read or compared, or none has come to its end.
    ConfigError
        If the target makes no sense, or the reference is none of the labels.
    MissingExtraError
        If Matplotlib, Jinja or Rich is not installed.
    FolderError
        If not all of it can be written to `out`: an earlier report there stays as it
        was, or has no page any more. Or if somebody else is writing one there.
    """
    A_SWITCH.check("paper", paper)
    _require_what_draws()
    folders, out = _as_paths(folders), as_path("out", out)
    series = read_series(folders)
    comparison = compare(series, target, reference)
    return write_compared(series, comparison, folders, out, paper=paper)


def write_compared(
    series: Sequence[Series],
    comparison: Comparison,
    folders: Sequence[Path],
    out: Path,
    *,
    paper: bool,
) -> Path:
    """Report as `write_report` does on runs that were read from some folders."""
    _require_what_draws()
    from flwr_asyncdrop.report.markdown import markdown
    from flwr_asyncdrop.report.page import render_page
    from flwr_asyncdrop.report.paper import write_paper
    from flwr_asyncdrop.report.pictures import (
        as_one,
        draw_comparison,
        draw_fleet,
        file_names,
    )
    from flwr_asyncdrop.report.table_files import csv_text, json_values

    names = [folder.resolve().name or str(folder) for folder in folders]
    with (
        tidied(out),
        FolderLock(out, _LOCK),
        changing(out),
        drafts_of(out, _PAGE) as drafts,
    ):
        pictures = draw_comparison(series, comparison, drafts)
        named = file_names(one.label for one in series)
        runs = {
            one.label: draw_fleet(
                next(iter(one.runs.values())), named[one.label], drafts
            )
            for one in series
            if one.runs
        }
        drawn = [each.path.name for each in chain(pictures, *runs.values())]
        if paper:
            write_paper(series, comparison, drafts / _PAPER)
            made = sorted((drafts / _PAPER).iterdir())
            drawn += [f"{_PAPER}/{path.name}" for path in made]
        values = {**json_values(comparison), "pictures": drawn}
        texts = {
            "table.md": markdown(comparison),
            "table.csv": csv_text(comparison),
            "table.json": json.dumps(values, indent=2) + "\n",
        }
        for name, text in texts.items():
            write_whole(drafts / name, text.encode())
        html = render_page(series, comparison, pictures, runs, names)
        write_whole(drafts / _PAGE, html.encode())
        earlier = _pictures_there(out)
        (out / _PAGE).unlink(missing_ok=True)  # which says that all is there
        new = {as_one(name) for name in drawn}
        for name in earlier:
            if as_one(name) not in new:  # of runs that are no longer in the table
                (out / name).unlink(missing_ok=True)
    return out / _PAGE


def _require_what_draws() -> None:
    require_matplotlib()
    for module in ("jinja2", "rich"):
        require(module, "report")


def _pictures_there(out: Path) -> set[str]:
    """Return the names of the pictures of an earlier report, from its table."""
    try:
        names = json.loads((out / "table.json").read_bytes())["pictures"]
        return {name for name in names if isinstance(name, str) and _is_ours(name)}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return set()


def _is_ours(name: str) -> bool:
    """Return whether a report may have drawn a file, which no other place has."""
    folder, _, own = name.rpartition("/")
    is_a_name = Path(own).name == own and "\0" not in own
    return is_a_name and (folder, Path(own).suffix) in _PICTURES


def _as_paths(folders: Sequence[AnyPath]) -> list[Path]:
    """Return the folders as paths; a path by itself is one folder."""
    several = [folders] if isinstance(folders, str | os.PathLike) else folders
    return [as_path("folders", folder) for folder in several]
