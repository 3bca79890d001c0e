"""The client: trains and evaluates on its own images."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_asyncdrop import load_submodel

from pytorch_quickstart.task import Net, load_data
from pytorch_quickstart.task import test as test_fn
from pytorch_quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model that the server sent."""
    model = Net()
    model = load_submodel(model, msg.content["arrays"])
    place = {**context.node_config, **msg.content["config"]}
    trainloader, _ = load_data(
        place["partition-id"],
        place["num-partitions"],
        context.run_config["batch-size"],
    )
    loss = train_fn(
        model,
        trainloader,
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    metrics = {"train_loss": loss, "num-examples": len(trainloader.dataset)}
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the global model."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    place = {**context.node_config, **msg.content["config"]}
    _, testloader = load_data(
        place["partition-id"],
        place["num-partitions"],
        context.run_config["batch-size"],
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loss, accuracy = test_fn(model, testloader, device)
    metrics = {
        "eval_loss": loss,
        "eval_acc": accuracy,
        "num-examples": len(testloader.dataset),
    }
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
