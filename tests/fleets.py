"""Small fleets on which it is clear what suits them, and runs in this process."""

from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.runs import is_complete, resumed
from flwr_asyncdrop.cli.worker import execute

SMALL = [
    *("--model=mlp", "--width=0.25", "--partition=iid", "--devices=12"),
    *("--in-flight=4", "--local-steps=5", "--batch-size=8", "--num-rounds=15"),
    *("--checkpoint-every=0",),
]
# What is said of each, and its flags. Full models of the task are 12 kB.
FLEETS = {
    "one speed": ["--levels=1", "--speed-ratio=1"],
    "stragglers": ["--levels=4", "--speed-ratio=50"],
    "slow links": ["--levels=1", "--speed-ratio=1", "--bandwidth-mbps=0.002"],
}


def do(what, runs):
    """Do the runs that are missing, without processes of their own."""
    for run in runs:
        if not is_complete(run):
            execute(resumed(run), Backend(), lambda event: None, "")


def without_pictures(monkeypatch):
    """Let runs write an empty picture: drawing takes longer than such a run."""
    monkeypatch.setattr(
        "flwr_asyncdrop.app.end.draw_run", lambda history, path: path.write_bytes(b"")
    )
