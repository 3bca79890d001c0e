"""ClientApps that the tests of LocalGrid run, imported by name in the workers."""

import os
import signal
import sys
import time

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

app = ClientApp()
not_an_app = "a string"


@app.train()
def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)
