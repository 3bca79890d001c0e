"""The client: trains on its own reviews."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_asyncdrop import load_submodel

from text_transformer.task import TextClassifier, load_data
from text_transformer.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model that the server sent."""
    model = TextClassifier()
    model = load_submodel(model, msg.content["arrays"])
    place = {**context.node_config, **msg.content["config"]}
    loader = load_data(
        place["partition-id"],
        place["num-partitions"],
        context.run_config["batch-size"],
        context.run_config["data-file"],
    )
    loss = train_fn(
        model,
        loader,
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content=content, reply_to=msg)
