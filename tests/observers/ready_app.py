"""Small runs of the ready app, for what watches them."""

from collections.abc import Sequence
from typing import Any

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.observers.history_lines import Record
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import LocalGrid

_SMALL = {"model": "mlp", "num-rounds": 3, "in-flight": 2, "local-steps": 1}


def run(settings: dict[str, Any], callbacks: Sequence[Callback] = ()) -> list[Record]:
    """Run the app in this process; return its history without what is the machine's."""
    config = RunConfig.parse({**_SMALL, **settings})
    app, told = "flwr_asyncdrop.client_app:app", config.settings
    with LocalGrid(app, num_nodes=4, workers=0, run_config=told) as grid:
        out = run_experiment(grid, config, callbacks)
    return [without_wall(line) for line in read_history(out / "history.jsonl")]
