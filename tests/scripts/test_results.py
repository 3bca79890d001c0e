"""The tables of the pages of results are what the packed histories come to."""

import re
from statistics import fmean

import pytest

from benchmarks.fair import ADJUSTED, CODED, OTHERS, ground_of
from scripts import results
from tests.nightly import nightly

ARCHIVES = sorted(results.HISTORIES.glob("*.tar.xz"))
# The gate reads a tenth of the histories, which have a million updates
IN_THE_GATE = {"results-paper.md", "results-codecs.md", "lab.md"}
IN_THE_GATE |= {f"mlp-small{end}.tar.xz" for end in ("", OTHERS, ADJUSTED)}


def some(paths):
    return [
        path.name if path.name in IN_THE_GATE else nightly(path.name, id=path.name)
        for path in paths
    ]


@pytest.mark.parametrize("page", some(results.PAGES))
def test_a_page_is_what_the_histories_say(page) -> None:
    text = (results.ROOT / "docs" / page).read_text(encoding="utf-8")
    assert "<!-- end -->" in text
    assert results.filled(text) == text


def test_every_archive_is_on_a_page_and_in_a_verdict() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in results.PAGES)
    kept = {path.name.removesuffix(".tar.xz") for path in ARCHIVES}
    names = {name for name in kept if name == ground_of(name)}
    assert {ground_of(name) for name in kept} == names
    ends = {"verdict-same-loss": ADJUSTED, "verdict-coded": CODED}
    for kind, end in ends.items():
        names_of = " ".join(re.findall(rf"<!-- {kind}: (.*) -->", pages)).split()
        with_end = {name for name in kept if name.endswith(end)}
        assert with_end == {f"{name}{end}" for name in names_of}
    tables = {*re.findall(r"<!-- ([\w-]+) -->", pages)} - {"end"}
    tables = {name for name in tables if not name.endswith(CODED)}
    judged = " ".join(re.findall(r"<!-- verdict: (.*) -->", pages)).split()
    assert tables == {*judged}
    assert names == tables | {*re.findall(r"<!-- factorial: ([\w-]+) -->", pages)}


def test_a_table_has_the_algorithms_of_others_beside_ours() -> None:
    first, chosen = results.read("mlp-small")
    others, theirs = results.read(f"mlp-small{OTHERS}")
    labels = {each.label for each in first}
    assert {each.label for each in others} < labels
    assert "asyncdrop-plus" in labels
    assert {*theirs} < {*chosen}
    # The best of them sets the target.
    best = max(fmean(c.final.value for c in s.curves.values()) for s in others)
    assert results.goal(first, 0.95).value == pytest.approx(0.95 * best)


@pytest.mark.parametrize("archive", some(ARCHIVES))
def test_settings_were_not_chosen_on_the_seeds_of_the_table(archive) -> None:
    series, _ = results.read(archive.removesuffix(".tar.xz"))
    assert all(set(each.runs) == {0, 1, 2, 3, 4} for each in series)


def test_every_archive_of_another_protocol_is_named_on_a_page() -> None:
    pages = "".join(
        page.read_text(encoding="utf-8")
        for page in (results.ROOT / "docs").glob("results-*.md")
    )
    kept = [p.relative_to(results.ROOT) for p in results.HISTORIES.glob("*/*.tar.xz")]
    assert kept
    assert [path for path in kept if path.as_posix() not in pages] == []
