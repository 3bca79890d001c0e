"""The tables of docs/results.md are what the packed histories come to."""

import pytest

from scripts import results


def test_the_page_is_what_the_histories_say() -> None:
    page = results.PAGE.read_text(encoding="utf-8")
    assert "<!-- mlp-small -->" in page
    assert results.filled(page) == page


@pytest.mark.parametrize(
    "archive", sorted(results.HISTORIES.glob("*.tar.xz")), ids=lambda path: path.name
)
def test_every_archive_is_on_the_page(archive) -> None:
    task = archive.name.removesuffix(".tar.xz")
    assert f"<!-- {task} -->" in results.PAGE.read_text(encoding="utf-8")


def test_settings_were_not_chosen_on_the_seeds_of_the_table() -> None:
    for archive in results.HISTORIES.glob("*.tar.xz"):
        series, _ = results.read(archive.name.removesuffix(".tar.xz"))
        assert all(set(each.runs) == {0, 1, 2, 3, 4} for each in series)
