"""The client: fits on its own images, and knows nothing of submodels."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sklearn_masked.task import build_model, get_arrays, load_data, set_arrays

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Fit the model that the server sent."""
    model = build_model(msg.content["config"]["lr"])
    set_arrays(model, msg.content["arrays"])
    images, labels = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    for _ in range(context.run_config["local-epochs"]):
        model.partial_fit(images, labels)
    metrics = {"train_loss": float(model.loss_), "num-examples": len(labels)}
    content = RecordDict(
        {"arrays": get_arrays(model), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)
