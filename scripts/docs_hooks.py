"""What the site needs beside MkDocs: links that leave the folder ``docs``.

On a forge, and in a clone, ``../examples/lora/README.md`` is a file. The site has the
examples' pages and CONTRIBUTING as pages of its own, below ``repository/``; other files
of the repository are named, not linked.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
_PLACE = "repository"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def _pages() -> dict[str, Path]:
    """Return the pages from outside of ``docs``, by their path in the repository."""
    found = [
        *(_ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted(_ROOT.glob("examples/*.md")),
        *sorted(_ROOT.glob("examples/*/README.md")),
    ]
    return {page.relative_to(_ROOT).as_posix(): page for page in found}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside, and the pictures that they show."""
    pictures = {
        picture.relative_to(_ROOT).as_posix(): picture
        for picture in sorted(_ROOT.glob("examples/*/*.png"))
    }
    for path, source in {**_pages(), **pictures}.items():
        files.append(
            File.generated(config, f"{_PLACE}/{path}", abs_src_path=str(source))
        )
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Turn links between ``docs`` and the rest of the repository into the site's."""
    at = PurePosixPath(page.file.src_uri)
    outside = at.parts[0] == _PLACE
    home = PurePosixPath(*at.parts[1:]) if outside else PurePosixPath("docs", at)

    def moved(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = normpath(str(home.parent / target))
        if path == "README.md":
            place = "index.md"
        elif path.startswith("docs/"):
            place = path.removeprefix("docs/")
        elif path in pages or f"{path}/README.md" in pages:
            name = path if path in pages else f"{path}/README.md"
            place = f"{_PLACE}/{name}"
        else:
            return text
        return f"[{text}]({relpath(place, at.parent)}{anchor})"

    pages = _pages()
    return _LINK.sub(moved, markdown)
