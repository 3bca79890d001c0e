"""What makes an output of a README stale, and what does not."""

import logging

import pytest

from tests.examples import shown

BLOCK = """\
update  9/80 | t 3 s | accuracy 0.412 | 10 devices, 8 in flight | 2 s left
    41 updates/s | staleness 1.6 | 93 kB down, 49.1 kB up | by speed group 4 3 2 0
update 80/80 | t 25 s | accuracy 0.881 | 10 devices, 0 in flight
    418 updates/s | staleness 1.6 | 436 kB down, 436 kB up | by speed group 37 20 13 10
"""


@pytest.fixture
def readme(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"It says\n\n```\n{BLOCK}```\n\nand\n\n```bash\nls\n```\n")
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("418 updates/s", "1.2e+02 updates/s"),
        ("2 s left", "1 min 3 s left"),
        ("accuracy 0.881", "accuracy 0.791"),
        ("update  9/80", "update 9/80"),
    ],
)
def test_what_depends_on_the_machine_does_not_count(old, new):
    assert old in BLOCK
    assert shown.same_progress(BLOCK, BLOCK.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("accuracy 0.881", "accuracy 0.779"),
        ("accuracy 0.881", "loss 0.881"),
        ("accuracy 0.881", "accuracy 88.1%"),
        ("418 updates/s", "418 updates/min"),
        ("update 80/80", "update 80/96"),
        ("t 25 s", "t 26 s"),
        ("10 devices, 0 in flight", "10 devices"),
        ("436 kB up", "435 kB up"),
        (" | 10 devices, 8 in flight", ""),
        ("2 s left", "2 s right"),
        (" | 2 s left", ""),
        ("    418", "418"),
        ("group 37 20 13 10\n", "group 37 20 13 10\nupdate 81/80\n"),
    ],
)
def test_all_else_does(old, new):
    assert old in BLOCK
    assert not shown.same_progress(BLOCK, BLOCK.replace(old, new))


@pytest.mark.parametrize("new", [" | accuracy 0.912", ""])
def test_a_metric_on_the_way_is_that_of_any_earlier_round(new):
    other = BLOCK.replace(" | accuracy 0.412", new)
    assert other != BLOCK
    assert shown.same_progress(BLOCK, other)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"round": 1, "seconds": 0.7}, True),
        ({"round": 2, "seconds": 0.1}, False),
        ({"round": 1, "seconds": "0.1"}, False),
        ({"round": 1}, False),
        ({"round": 1, "seconds": 0.1, "loss": 2.0}, False),
    ],
)
def test_records_may_differ_in_fractions_alone(other, same):
    assert shown.same_record({"round": 1, "seconds": 0.1}, other) is same


def test_the_last_lines_of_an_update_are_what_it_printed():
    logger = logging.getLogger("flwr.asyncdrop")
    with shown.logged_progress() as by_update:
        for words in ("1/2 | t 1 s", "1/2 | t 1 s | accuracy 0.100", "2/2 | t 2 s"):
            logger.warning("update %s", words)
            logger.warning("    staleness 0.0")
            logger.warning("an aside")
    logger.warning("update 2/2 | t 9 s")
    assert shown.printed("update 1/2\n", by_update) == (
        "update 1/2 | t 1 s | accuracy 0.100\n    staleness 0.0\n"
    )
    assert shown.printed("update 2/2\n", by_update) == (
        "update 2/2 | t 2 s\n    staleness 0.0\n"
    )


def test_a_shorter_run_shares_the_lines_before_its_end():
    first = "".join(BLOCK.splitlines(keepends=True)[:2])
    assert shown.before(BLOCK, 16, 24) == first.replace("update  9/80", "update 9/24")
    assert shown.before(BLOCK, 9, 24) == ""


def test_outputs_are_written_where_they_differ(readme, monkeypatch):
    monkeypatch.setattr(shown, "WRITE", True)
    before = readme.read_text()
    other = BLOCK.replace("t 25 s", "t 26 s")
    shown.settle(readme.parent, BLOCK, other, same=True)
    assert readme.read_text() == before
    shown.settle(readme.parent, BLOCK, other, same=False)
    assert readme.read_text() == before.replace("t 25 s", "t 26 s")
    assert shown.progress_of(readme.parent) == other


def test_outputs_that_differ_are_shown(readme, monkeypatch):
    monkeypatch.setattr(shown, "WRITE", False)
    before = readme.read_text()
    with pytest.raises(AssertionError, match="the README shows\nupdate  9/80"):
        shown.settle(readme.parent, BLOCK, "other\n", same=False)
    assert readme.read_text() == before
