"""The server: a strategy, and a test on images that no client has."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import HeteroAsyncDrop, speed_levels

from lightning_example.task import RowReader, load_test_data, quiet_trainer

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says."""
    strategy = HeteroAsyncDrop(
        RowReader(),
        torch.zeros(1, 8, 8),
        in_flight=8,
        fleet=speed_levels,
        fraction_evaluate=0.0,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(RowReader().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model on the server's images."""
    model = RowReader()
    model.load_state_dict(arrays.to_torch_state_dict())
    (metrics,) = quiet_trainer().test(model, load_test_data(), verbose=False)
    return MetricRecord(metrics)
