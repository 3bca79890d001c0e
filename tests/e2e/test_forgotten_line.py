"""A client that was not converted ends `flwr run` with a failure that says how to."""

import shutil
from pathlib import Path

import pytest

from tests.nightly import once_in_the_gate
from tests.processes import run_engine

ROOT = Path(__file__).parents[2]
LINE = 'load_submodel(model, msg.content["arrays"])'
FORGOTTEN = 'model.load_state_dict(msg.content["arrays"].to_torch_state_dict())'


@once_in_the_gate
@pytest.mark.e2e
def test_a_forgotten_line_ends_the_run_as_failed(tmp_path):
    app = tmp_path / "app"
    shutil.copytree(ROOT / "examples" / "pytorch-quickstart", app)
    client = app / "pytorch_quickstart" / "client_app.py"
    before = client.read_text()
    converted = before.replace(f"model = {LINE}", FORGOTTEN).replace(LINE, FORGOTTEN)
    assert converted != before
    client.write_text(converted)
    done = run_engine(
        [
            str(ROOT / "scripts" / "flwr_run.py"),
            str(app),
            "--federation-config",
            "num-supernodes=2 client-resources-num-cpus=1",
        ],
        cwd=ROOT,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "size mismatch" in said
    assert "load_submodel(model, message.content['arrays'])" in said
