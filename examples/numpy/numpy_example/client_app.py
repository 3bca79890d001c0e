"""The client: trains on its own images."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpy_example.task import load_data
from numpy_example.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model that the server sent."""
    model = [array.copy() for array in msg.content["arrays"].to_numpy_ndarrays()]
    place = {**context.node_config, **msg.content["config"]}
    images, labels = load_data(place["partition-id"], place["num-partitions"])
    loss = train_fn(
        model,
        images,
        labels,
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
    )
    metrics = {"train_loss": loss, "num-examples": len(labels)}
    content = RecordDict(
        {"arrays": ArrayRecord(model), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)
