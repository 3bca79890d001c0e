"""What the gate leaves out is run by night: the Makefile finds its files."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.nightly import FEWER, NIGHTLY, examples

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MARKS = re.compile(r"from tests\.nightly import .*\b(NIGHTLY|nightly|by_night)\b")
MARKED = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests").rglob("test_*.py")
    if MARKS.search(path.read_text(encoding="utf-8"))
)


def recipe_of(target):
    """Return the lines of a target."""
    return re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)[1]


def test_there_are_some():
    assert len(MARKED) > 10


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_every_file_with_a_mark_is_run_by_night():
    shown = subprocess.run(
        ["make", "--dry-run", "nightly"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (line,) = (line for line in shown.splitlines() if "tests/zoo/test_zoo.py" in line)
    assert sorted(word for word in line.split() if word.startswith("tests/")) == MARKED


def test_properties_are_run_by_night_with_all_examples():
    assert "ASYNCDROP_NIGHTLY=1 $(BIN)/python -m pytest -m hypothesis" in MAKEFILE
    assert examples(100) == (100 if NIGHTLY else 34)
    assert examples(3 * FEWER) >= FEWER


def test_what_is_left_out_on_an_older_flower_is_there_and_run_by_night():
    listed = re.search(r"^ONCE_IN_THE_GATE := (.*?\))$", MAKEFILE, re.M | re.S)[1]
    names = re.findall(r"[\w/]+(?:\.py)?", listed.partition("tests/,")[2])
    assert len(names) > 10
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []
    assert "$(MAKE) nightly-grpc" in recipe_of("nightly")
    assert "ONCE_IN_THE_GATE" not in recipe_of("nightly-grpc")
