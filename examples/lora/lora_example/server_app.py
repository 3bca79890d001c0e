"""The server: a strategy, and an evaluation on requests that are drawn anew."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import HeteroAsyncDrop, speed_levels
from flwr_asyncdrop.submodel import lora_plan
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from lora_example.task import build_model, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says."""
    testloader = load_test_data()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = build_model()
        set_peft_model_state_dict(model, arrays.to_torch_state_dict())
        loss, accuracy = test(model, testloader, device)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    arrays = ArrayRecord(get_peft_model_state_dict(build_model()))
    strategy = HeteroAsyncDrop(
        plan=lora_plan(build_model(), shared=True),
        in_flight=8,
        fleet=speed_levels,
        fraction_evaluate=0.0,
    )
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
