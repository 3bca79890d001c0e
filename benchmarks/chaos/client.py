"""A ClientApp that leaves a mark in the model, and goes wrong as its plan says.

Task number ``k`` adds 1 to coordinate ``k`` of the array "tally", and nothing else.
Merged by sums of changes, that coordinate is how often the task has been merged: the
model itself says it, whatever the server's books say. It needs no PyTorch, so that a
SuperNode starts its process quickly.
"""

import os
import signal
import time
from pathlib import Path

from flwr.app import Array, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.chaos.faults import SPOILERS, TALLY, Fault
from benchmarks.chaos.ledger import Ledger

__all__ = ["app", "make_client_app"]

_SEED = "asyncdrop-seed"
_EXIT_STATUS = 3

app = ClientApp()


def make_client_app() -> ClientApp:
    """Return the ClientApp, for LocalGrid's workers."""
    return app


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do a task, or what goes wrong with it."""
    ledger = Ledger(Path(str(context.run_config["chaos-dir"])))
    seed = int(str(message.content.config_records["config"][_SEED]))
    partition = int(context.node_config["partition-id"])
    number, fault = ledger.begin_task(seed=seed, partition=partition)
    if fault is Fault.RAISES:
        raise RuntimeError("out of battery")
    if fault is Fault.EXITS:
        os._exit(_EXIT_STATUS)
    if fault is Fault.KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in (Fault.LATE, Fault.HANGS):
        key = "late-seconds" if fault is Fault.LATE else "hang-seconds"
        time.sleep(float(context.run_config[key]))
    arrays = message.content.array_records["arrays"]
    tally = arrays[TALLY].numpy()
    tally[number] += 1
    arrays[TALLY] = Array(tally)
    metrics = MetricRecord({"num-examples": 1, "task": number})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    if fault is not None and fault in SPOILERS:
        SPOILERS[fault](content)
    return Message(content, reply_to=message)
