"""What Matplotlib lacks is a line, wherever it is imported."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys, tempfile
from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.report.drawing import require_matplotlib

def fails(*_, **__):
    raise FileNotFoundError(2, "No usable temporary directory found")

if {nowhere}:
    tempfile.mkdtemp = fails
try:
    require_matplotlib()
except MissingExtraError as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.parametrize("nowhere", [False, True], ids=["slower", "impossible"])
def test_no_folder_for_its_cache(nowhere, tmp_path):
    (tmp_path / "file").touch()
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "file" / "x")}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(nowhere=nowhere)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    (line,) = done.stderr.splitlines()
    begins = (
        "matplotlib cannot be imported (OS" if nowhere else "Matplotlib cannot keep"
    )
    assert begins in line
    assert f"{tmp_path}/file/x" in line
    assert line.endswith(": set MPLCONFIGDIR to a folder that can be written")
