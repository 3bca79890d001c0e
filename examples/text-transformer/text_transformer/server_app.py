"""The server: a strategy, and an evaluation on reviews that no client has."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import HeteroAsyncDrop, speed_levels

from text_transformer.task import LENGTH, TextClassifier, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says."""
    testloader = load_test_data(context.run_config["data-file"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = TextClassifier()
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(model, testloader, device)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = HeteroAsyncDrop(
        TextClassifier(),
        torch.zeros(1, LENGTH, dtype=torch.int64),
        in_flight=8,
        fleet=speed_levels,
        fraction_evaluate=0.0,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(TextClassifier().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
