"""The server: a strategy, and an evaluation on images that no client has."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import AsyncDrop, speed_levels
from flwr_asyncdrop.submodel import declare_plan

from sklearn_masked.task import build_model, get_arrays, set_arrays, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says."""
    arrays = get_arrays(build_model())
    plan = declare_plan(
        {name: array.shape for name, array in arrays.items()},
        {"hidden": {"coefs_0": 1, "intercepts_0": 0, "coefs_1": 0}},
    )
    strategy = AsyncDrop(
        plan=plan,
        mode="masked",
        in_flight=8,
        fleet=speed_levels,
        fraction_evaluate=0.0,
    )
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on the server's images."""
    model = build_model()
    set_arrays(model, arrays)
    return MetricRecord({"accuracy": test(model)})
