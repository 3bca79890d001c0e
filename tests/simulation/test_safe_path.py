"""Files of the current folder do not stand for modules of a fork server."""

import os
import subprocess
import sys

import pytest

from tests.nightly import nightly

SCRIPT = """
import os, sys
sys.path.append(os.getcwd())
from flwr_asyncdrop.simulation import fork_server, liveness

def show():
    import random
    print(random.__file__, os.environ.get("PYTHONSAFEPATH"), sys.path[-1])

if __name__ == "__main__":
    import multiprocessing
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=show)
    fork_server.start_process(process, liveness.LivenessLimits())
    process.join()
    print(process.exitcode, os.environ.get("PYTHONSAFEPATH"))
"""


@pytest.mark.parametrize(
    "module", ["random", nightly("torch"), nightly("logging"), "types"]
)
def test_a_file_of_the_name_of_a_module_is_not_imported(module, tmp_path):
    there, script = tmp_path / "there", tmp_path / "script" / "show.py"
    there.mkdir()
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (there / f"{module}.py").write_text("raise RuntimeError('imported')\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=there,
        env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert "imported" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "0 None"


def test_a_process_forgets_what_was_set_for_its_server_alone(monkeypatch):
    from flwr_asyncdrop.simulation.safe_path import forget, safe_path

    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with safe_path(), safe_path():
        ours = os.environ["PYTHONSAFEPATH"]
    assert "PYTHONSAFEPATH" not in os.environ
    for value, left in ((ours, None), ("1", "1")):
        monkeypatch.setenv("PYTHONSAFEPATH", value)
        forget()
        assert os.environ.get("PYTHONSAFEPATH") == left
