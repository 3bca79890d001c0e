"""A ClientApp that sends back what it got, and says who and where it is."""

import os
import time

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_asyncdrop import CodecMod

__all__ = ["app"]

app = ClientApp(mods=[CodecMod()])


@app.train()
def echo(message: Message, context: Context) -> Message:
    """Send the arrays back untouched."""
    metrics = MetricRecord(
        {
            "num-examples": 1,
            "partition": int(context.node_config["partition-id"]),
            "process": os.getpid(),
            "parent": os.getppid(),
            "draw": float(torch.rand(())),
            "cpu": time.process_time(),
        }
    )
    arrays = message.content["arrays"]
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
