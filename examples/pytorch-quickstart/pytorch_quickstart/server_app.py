"""The server: a strategy, and an evaluation on images that no client has."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import HeteroAsyncDrop, speed_levels
from torch.utils.data import DataLoader

from pytorch_quickstart.task import Net, load_images, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says."""
    strategy = HeteroAsyncDrop(
        Net(),
        torch.zeros(1, 1, 8, 8),
        in_flight=8,
        fleet=speed_levels,
        fraction_evaluate=context.run_config["fraction-evaluate"],
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on the server's test images."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    _, testset = load_images()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loss, accuracy = test(model, DataLoader(testset, batch_size=64), device)
    return MetricRecord({"loss": loss, "accuracy": accuracy})
