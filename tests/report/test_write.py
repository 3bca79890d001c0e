import json
import re
from html.parser import HTMLParser

import pytest

from flwr_asyncdrop.report import comparison_table, write_report
from tests.report.histories import history, write

WALL = {"wall": {"seconds": 0.0}}


class Page(HTMLParser):
    """Notes what a page has, and checks that its tags are balanced."""

    VOID = frozenset({"meta", "img", "link", "br"})

    def __init__(self, text):
        super().__init__()
        self.images, self.cells, self._open = [], [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs)["src"])
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "td":
            self.cells.append(data)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    for seed, accuracies in enumerate([[0.2, 0.6], [0.3, 0.5]]):
        write(out / "fedbuff" / f"seed-{seed}", history("fedbuff", seed, accuracies))
    label = "asyncdrop,alpha<1"
    *lines, end = history(label, 0, [0.4, 0.7])
    for line in lines[1:]:
        line["metrics"]["level-accuracy"] = [0.5, 0.75]
    group = {"name": "hidden", "size": 2, "counts": [[1, 0]]}
    counts = {"ranks": [0], "updates": [1], "bin": 1, "groups": [group]}
    units = {"event": "units", **counts, **WALL}
    write(out / label / "seed-0", [*lines, units, end])
    write(out / label / "seed-1", history(label, 1, [0.9], ended=False))
    return out


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    return write_report([results], out, target=0.5)


def test_the_files(page):
    names = {path.name for path in page.parent.iterdir()}
    assert names == {
        "report.html",
        "table.md",
        "table.csv",
        "table.json",
        "accuracy-time.png",
        "accuracy-bytes.png",
        "timeline-fedbuff.png",
        "timeline-asyncdrop,alpha<1.png",
        "units-asyncdrop,alpha<1.png",
        "levels-asyncdrop,alpha<1.png",
    }
    values = json.loads((page.parent / "table.json").read_text())
    assert values["target"]["accuracy"] == 0.5
    assert "| fedbuff |" in (page.parent / "table.md").read_text()


def test_the_page_is_complete_in_itself(page):
    text = page.read_text()
    parsed = Page(text)
    assert len(parsed.images) == 6
    assert all(src.startswith("data:image/png;base64,") for src in parsed.images)
    assert not re.search(r"https?:|<link|@import|url\(", text)


def test_the_page_has_the_table_and_escapes_labels(page):
    text = page.read_text()
    cells = Page(text).cells
    assert "fedbuff" in cells
    assert "asyncdrop,alpha<1" in cells
    assert "alpha<1</td>" not in text
    assert "1 +1" in cells


def test_the_same_runs_give_the_same_report(page, results, tmp_path):
    again = write_report([results], tmp_path / "again", target=0.5)
    assert again.read_bytes() == page.read_bytes()


def test_the_terminals_table_goes_by_the_same_target(results):
    table = comparison_table([results], target=0.5, reference="fedbuff")
    assert table.row_count == 2
    assert "The reference is fedbuff" in table.caption
