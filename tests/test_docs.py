"""Links of the documentation lead somewhere, and its commands parse."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Template
from typing import get_args

import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.exceptions import ReplyKind
from flwr_asyncdrop.server.callbacks import LossKind

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    )
    if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(page: Path) -> str:
    """Return a page without its code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """Return what a page's headings are called in links, as GitHub has it."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_all_kinds_of_failures_are_told() -> None:
    """Two were in no list."""
    text = (ROOT / "docs/robustness.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `([a-z-]+)` \| .* \|$", text, flags=re.MULTILINE))
    assert set(get_args(ReplyKind)) <= table
    (others,) = re.findall(r"^Other tasks fail .*\n.*", text, flags=re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", others)) == set(get_args(LossKind))


def commands(page: Path) -> Iterator[str]:
    """Yield the `asyncdrop` commands of a page's shell blocks, one a line."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, flags=re.DOTALL):
        variables = dict(re.findall(r'^([A-Z]+)="(.*)"', block, flags=re.MULTILINE))
        for line in block.replace("\\\n", " ").splitlines():
            command = Template(line.strip().removeprefix("$ ")).safe_substitute(
                variables
            )
            if command.startswith("asyncdrop "):
                yield command


def modules(page: Path) -> list[tuple[str, str]]:
    """Return the Python files that a page shows, by name."""
    shown = r"`(\w+\.py)`[^\n]*:\n\n```python\n(.*?)```"
    return re.findall(shown, page.read_text(encoding="utf-8"), flags=re.DOTALL)


COMMANDS = [
    pytest.param(page, command, id=f"{name}: {command}"[:120])
    for name, page in zip(NAMES, PAGES, strict=True)
    for command in commands(page)
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_parse(
    page: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a command names lies where it is said to be run, or is shown on the page.
    for name, code in modules(page):
        (tmp_path / name).write_text(code, encoding="utf-8")
    for folder in (tmp_path, page.parent, *ROOT.glob("examples/*")):
        monkeypatch.syspath_prepend(str(folder))
    _, name, *words = shlex.split(command, comments=True)
    module = import_module(f"flwr_asyncdrop.cli.{name}")
    parser = Parser(prog=f"asyncdrop {name}", allow_abbrev=False)
    module.add_arguments(parser, words)
    _, rest = parser.parse_known_args(words)
    assert not rest or getattr(module, "PASSES_ON", False)


def test_the_codecs_of_run_configs_are_taken() -> None:
    for page in ROOT.glob("docs/*.md"):
        for name in re.findall(r"codec='([^']*)'", page.read_text(encoding="utf-8")):
            RunConfig.parse({"codec": name, "bandwidth-mbps": 5.0})


PLACES = {
    "HistoryWriter": "flwr_asyncdrop.observers.history",
    "recalibrate_bn": "flwr_asyncdrop.submodel",
}


@pytest.mark.parametrize(("name", "module"), PLACES.items())
def test_what_is_not_at_the_top_is_said_to_be_where_it_is(
    name: str, module: str
) -> None:
    assert hasattr(import_module(module), name)
    for page in ROOT.glob("docs/*.md"):
        text = page.read_text(encoding="utf-8")
        assert f"`{name}(" not in text or f"`{module}`" in text, page


def test_torchvision_comes_with_torch() -> None:
    """Beside torch for the CPU no other build of it can be imported."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    installed = re.findall(r"pip install (.*?) --index-url", text)
    assert set(installed) == {"torch torchvision"}
