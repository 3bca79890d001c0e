"""The notebooks run from the first cell to the last."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import by_night

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def run(name: str, folder: Path) -> str:
    """Run a notebook's cells in a folder of its own; like it, without a file."""
    cells = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-c", "\n\n".join(code)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@by_night
def test_submodels(tmp_path: Path) -> None:
    assert "rows that were left out have not changed" in run(
        "submodels.ipynb", tmp_path
    )


@by_night
def test_fleet(tmp_path: Path) -> None:
    printed = run("fleet.ipynb", tmp_path)
    assert "final accuracy" in printed
    assert "No intervals: they take 5 seeds" in printed  # as the next cell says
    assert "accuracy-time.png" in printed


@pytest.mark.parametrize(
    "name", sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
)
def test_no_outputs_are_kept(name: str) -> None:
    cells = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
