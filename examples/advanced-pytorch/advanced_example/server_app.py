"""The server: a strategy of its own, its tracker, and the final model."""

from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import speed_levels
from flwr_asyncdrop.masks import SmartPartition
from torch.utils.data import DataLoader

from advanced_example.strategy import TrackedStrategy
from advanced_example.task import Net, load_images, test
from advanced_example.tracker import Tracker

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says, and save the final model."""
    config = context.run_config
    date = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = Path(config["out-dir"] or f"outputs/{date}").absolute()
    strategy = TrackedStrategy(
        Net(),
        torch.zeros(1, 1, 8, 8),
        masks=SmartPartition(0.25),
        fleet=speed_levels,
        fraction_train=config["fraction-train"],
        fraction_evaluate=config["fraction-evaluate"],
        tracker=Tracker(folder / "metrics.jsonl", config),
        folder=folder,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), folder / "final.pt")
    getLogger("flwr").info("The models and the metrics are in %s", folder)


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on the server's images."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    _, testset = load_images()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loss, accuracy = test(model, DataLoader(testset, batch_size=64), device)
    return MetricRecord({"loss": loss, "accuracy": accuracy})
