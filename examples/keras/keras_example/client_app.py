"""The client: fits on its own images, and knows nothing of submodels."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from keras_example.task import load_data, load_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Fit the model that the server sent."""
    model = load_model(msg.content["config"]["lr"])
    model.set_weights(msg.content["arrays"].to_numpy_ndarrays())
    images, labels = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    history = model.fit(
        images,
        labels,
        batch_size=context.run_config["batch-size"],
        epochs=context.run_config["local-epochs"],
        verbose=0,
    ).history
    metrics = {"train_loss": history["loss"][-1], "num-examples": len(labels)}
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.get_weights()),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content=content, reply_to=msg)
