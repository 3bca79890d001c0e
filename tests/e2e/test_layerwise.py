"""The ready app with whole blocks left out, on the in-process grid."""

from safetensors.torch import load_file

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.observers.history_reading import read_history

VALUES = {
    "algo": "layerwise-asyncdrop",
    "model": "resnet18",
    "drop-rate": 0.4,  # 2 of the 5 blocks that keep the shape
    "num-rounds": 2,
    "in-flight": 3,
    "local-steps": 1,
    "batch-size": 4,
    "evaluate-every": 2,
}


def test_the_ready_app_leaves_blocks_out(tmp_path):
    values = {**VALUES, "out-dir": str(tmp_path)}
    config = RunConfig.parse(values)
    app = "flwr_asyncdrop.client_app:app"
    with LocalGrid(app, num_nodes=3, workers=0, run_config=values) as grid:
        out = run_experiment(grid, config)
    events = read_history(out / "history.jsonl")
    updates = [event for event in events if event["event"] == "update"]
    assert len(updates) == 6
    # A block has two convolutions: of 9 * 64 * 64 weights in stage 1, of 64 times as
    # many in stage 4.
    full = initial_model(config).state_dict()
    full_bytes = sum(t.numel() * t.element_size() for t in full.values())
    block = 4 * 2 * 9 * 64**2
    saved = [full_bytes - event["bytes_down"] for event in updates]
    assert all(1.9 * block < less < (16 + 64) * 1.1 * block for less in saved)
    assert max(saved) > 16 * block
    # But the FLOPs are the same in every stage.
    assert {round(event["compute"], 2) for event in updates} == {0.73}
    merged = load_file(out / "model.safetensors")
    assert {n: t.shape for n, t in merged.items()} == {
        n: t.shape for n, t in full.items()
    }
