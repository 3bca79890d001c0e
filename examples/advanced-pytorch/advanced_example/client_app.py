"""The client: trains and evaluates on its own images, with a head of its own."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_asyncdrop import load_personal, load_submodel, save_personal

from advanced_example.task import Net, load_data
from advanced_example.task import test as test_fn
from advanced_example.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model that the server sent, with the head that this node kept."""
    model = load_submodel(Net(), msg.content["arrays"])
    load_personal(context, model, msg, "head")
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
    save_personal(context, model, msg, "head")
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
    """Evaluate the global model, with the head that this node kept."""
    model = load_submodel(Net(), msg.content["arrays"])
    load_personal(context, model, msg, "head")
    place = {**context.node_config, **msg.content["config"]}
    _, valloader = load_data(
        place["partition-id"],
        place["num-partitions"],
        context.run_config["batch-size"],
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loss, accuracy = test_fn(model, valloader, device)
    metrics = {
        "eval_loss": loss,
        "eval_acc": accuracy,
        "num-examples": len(valloader.dataset),
    }
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
