"""The tables of the pages of results are what the packed histories come to."""

import re

import pytest

from scripts import results

ARCHIVES = sorted(results.HISTORIES.glob("*.tar.xz"))


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.name)
def test_a_page_is_what_the_histories_say(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- end -->" in text
    assert results.filled(text) == text


def test_every_archive_is_on_a_page_and_in_a_verdict() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in results.PAGES)
    names = {path.name.removesuffix(".tar.xz") for path in ARCHIVES}
    tables = {*re.findall(r"<!-- ([\w-]+) -->", pages)} - {"end"}
    judged = " ".join(re.findall(r"<!-- verdict: (.*) -->", pages)).split()
    assert tables == {*judged}
    assert names == tables | {*re.findall(r"<!-- factorial: ([\w-]+) -->", pages)}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_settings_were_not_chosen_on_the_seeds_of_the_table(archive) -> None:
    series, _ = results.read(archive.name.removesuffix(".tar.xz"))
    assert all(set(each.runs) == {0, 1, 2, 3, 4} for each in series)
