"""The server: a strategy, and an evaluation on reviews that no client has."""

import logging

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr_asyncdrop import HeteroAsyncDrop, load_lora, lora_state, speed_levels
from flwr_asyncdrop.aggregation import ProductMixing
from flwr_asyncdrop.submodel import lora_plan

from llm_lora.dataset import load_test_data
from llm_lora.models import build_model, folder_of, precision, test

logger = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run config says."""
    config = context.run_config
    model, tokenizer = build_model(folder_of(config), config["lora-rank"])
    testloader = load_test_data(config["data-file"], tokenizer)
    trained, total = model.get_nb_trainable_parameters()
    logger.info("%d of %d weights train; base in %s", trained, total, precision())

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        load_lora(model, arrays)
        perplexity, accuracy = test(model, testloader, tokenizer)
        return MetricRecord({"perplexity": perplexity, "accuracy": accuracy})

    inputs = {"input_ids": torch.ones(1, 32, dtype=torch.int64)}
    arrays = ArrayRecord(lora_state(model))
    strategy = HeteroAsyncDrop(
        model,
        inputs,
        plan=lora_plan(model, inputs, units=config["units"]),
        aggregator=ProductMixing(),
        in_flight=8,
        fleet=speed_levels,
        fraction_evaluate=0.0,
    )
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
