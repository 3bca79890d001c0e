"""A frozen backbone on a real SuperLink: each device downloads it once."""

import shutil
from pathlib import Path

import pytest

from benchmarks.chaos.deployment import Deployment
from flwr_asyncdrop.observers.history_reading import read_history
from tests.nightly import by_night
from tests.processes import superlink_starts

pytestmark = superlink_starts

ROOT = Path(__file__).parents[2]
NODES = 2
EDITS = {
    "task.py": (
        "        self.fc2 = nn.Linear(64, 10)\n",
        "        self.fc2 = nn.Linear(64, 10)\n"
        "        torch.manual_seed(0)\n"
        "        for layer in (self.conv1, self.conv2, self.fc1):\n"
        "            layer.reset_parameters()\n"
        "            layer.requires_grad_(False)\n",
    ),
    "client_app.py": ("ClientApp()", "ClientApp(mods=[FrozenMod()])"),
    "server_app.py": (
        "        in_flight=8,\n        fleet=speed_levels,\n",
        "        in_flight=2,\n        callbacks=[HistoryWriter(Path(HISTORY))],\n",
    ),
}
IMPORTS = (
    "from pathlib import Path\n"
    "from flwr_asyncdrop.observers.history import HistoryWriter\n"
    "HISTORY = {history!r}\n"
)


def write_app(folder, history):
    """Copy the quickstart, freeze its backbone, and give its client the mod."""
    app = folder / "app"
    shutil.copytree(ROOT / "examples" / "pytorch-quickstart", app)
    package = app / "pytorch_quickstart"
    for name, (before, after) in EDITS.items():
        text = (package / name).read_text()
        assert before in text
        text = text.replace(before, after)
        docstring, rest = text.split("\n", 1)
        if name == "server_app.py":
            rest = IMPORTS.format(history=str(history)) + rest
        if name == "client_app.py":
            rest = "from flwr_asyncdrop import FrozenMod\n" + rest
        (package / name).write_text(f"{docstring}\n{rest}")
    return app


@pytest.mark.e2e
@by_night
def test_each_device_downloads_the_backbone_once(tmp_path):
    """Each task has a process of its own: what a device keeps is in its context."""
    history = tmp_path / "history.jsonl"
    app = write_app(tmp_path, history)
    with Deployment(tmp_path, NODES) as deployment:
        run = deployment.run(app, **{"num-server-rounds": 2, "fraction-evaluate": 1.0})
        assert run.wait(timeout=400) == 0, deployment.log_of(run)
        log = deployment.log_of(run)
    lines = list(read_history(history))
    updates = [line for line in lines if line["event"] == "update"]
    assert len(updates) == 2 * NODES, log
    for device in range(NODES):
        mine = [line["bytes_down"] for line in updates if line["device"] == device]
        assert sum(size > 5_000 for size in mine) == bool(mine), log
    assert not [line for line in lines if line["event"] == "failure"], log
    evaluated = [line for line in lines if line["event"] == "evaluation"]
    assert {line["source"] for line in evaluated} == {"server", "clients"}
