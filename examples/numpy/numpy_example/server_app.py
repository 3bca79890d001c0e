"""The server: a strategy, and an evaluation on images that no client has."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import FedBuff, speed_levels

from numpy_example.task import build_model, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says."""
    strategy = FedBuff(in_flight=8, fraction_evaluate=0.0, fleet=speed_levels)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build_model()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on the server's images."""
    return MetricRecord({"accuracy": test(arrays.to_numpy_ndarrays())})
