"""The client: trains adapters on its own reviews."""

from functools import cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_asyncdrop import load_lora, lora_state

from llm_lora.dataset import load_data
from llm_lora.models import build_model, folder_of
from llm_lora.models import train as train_fn

app = ClientApp()
load_model = cache(build_model)  # once in a process


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the adapters that the server sent."""
    config = context.run_config
    model, tokenizer = load_model(folder_of(config), config["lora-rank"])
    load_lora(model, msg.content["arrays"])
    place = {**context.node_config, **msg.content["config"]}
    loader = load_data(
        place["partition-id"],
        place["num-partitions"],
        config["batch-size"],
        config["data-file"],
        tokenizer,
    )
    loss = train_fn(
        model,
        loader,
        config["local-epochs"],
        msg.content["config"]["lr"],
    )
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    content = RecordDict(
        {
            "arrays": ArrayRecord(lora_state(model)),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content=content, reply_to=msg)
