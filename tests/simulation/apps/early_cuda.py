"""A ClientApp whose module looks at CUDA's variable as it is imported."""

import os

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

SEEN = os.environ.get("CUDA_VISIBLE_DEVICES", "all")

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    content = RecordDict({"facts": ConfigRecord({"visible": SEEN})})
    return Message(content, reply_to=message)


def make_app() -> ClientApp:
    return app
