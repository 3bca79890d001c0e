"""The client: fits the module on its own images."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_asyncdrop import load_submodel

from lightning_example.task import RowReader, load_data, quiet_trainer

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Fit the model that the server sent."""
    model = RowReader(lr=msg.content["config"]["lr"])
    model = load_submodel(model, msg.content["arrays"])
    place = {**context.node_config, **msg.content["config"]}
    loader = load_data(
        place["partition-id"],
        place["num-partitions"],
        context.run_config["batch-size"],
    )
    trainer = quiet_trainer(context.run_config["max-epochs"])
    trainer.fit(model, loader)
    metrics = {
        "train_loss": trainer.callback_metrics["train_loss"].item(),
        "num-examples": len(loader.dataset),
    }
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content=content, reply_to=msg)
