import re

import pytest

from benchmarks.tables.__main__ import PAGES
from benchmarks.tables.pictures import PICTURES, drawn, picture_of, shown


def test_every_picture_of_the_pages_can_be_drawn_and_is_used():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    used = set(re.findall(r"\(results-fair-([\w-]+)\.png\)", text))
    assert used == PICTURES.keys()
    assert all(picture_of(name).exists() for name in PICTURES)


@pytest.mark.parametrize(("ground", "number"), [("mlp-five", 6), ("lstm-full", 7)])
def test_it_shows_all_it_is_to_show(ground, number):
    assert len(shown(ground)) == number


def test_a_picture_is_drawn_from_the_histories():
    assert drawn("mlp-five").startswith(b"\x89PNG")
