"""A ClientApp for the tests of LocalGrid: each action does one thing."""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_asyncdrop.exceptions import Interrupted

app = ClientApp()
not_an_app = "a string"


def make_app() -> ClientApp:
    return app


def make_nothing() -> None:
    raise OSError("the data\nis not there")


def exit_at_once() -> None:
    os._exit(7)


def make_unlucky_app(starts: Path, fatal: range) -> ClientApp:
    """Die on those starts, counted from 0 in a file."""
    number = len(starts.read_text())
    starts.write_text("|" * (number + 1))
    if number in fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return app


@app.train()
def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


@app.train("describe")
def describe(message: Message, context: Context) -> Message:
    facts = ConfigRecord(
        {
            "node-id": context.node_id,
            "run-id": context.run_id,
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
        }
    )
    node = ConfigRecord(dict(context.node_config))
    run = ConfigRecord(dict(context.run_config))
    content = RecordDict({"facts": facts, "node": node, "run": run})
    return Message(content, reply_to=message)


@app.train("tally")
def tally(message: Message, context: Context) -> Message:
    """Append the message's number to those in the node's state; reply with all."""
    seen = context.state.get("seen", MetricRecord({"numbers": []}))
    number = message.content["task"]["number"]
    context.state["seen"] = MetricRecord({"numbers": [*seen["numbers"], number]})
    return Message(RecordDict({"seen": context.state["seen"]}), reply_to=message)


@app.train("spoil")
def spoil(message: Message, context: Context) -> Message:
    """Change the message in place; the sender must not see it."""
    message.content["task"]["number"] = -1
    return Message(message.content, reply_to=message)


@app.train("boom")
def boom(message: Message, context: Context) -> Message:
    context.state["seen"] = MetricRecord({"numbers": [99]})
    raise ValueError("the batch\nis empty")


@app.train("leave")
def leave(message: Message, context: Context) -> Message:
    sys.exit(3)


@app.train("interrupted")
def interrupted(message: Message, context: Context) -> Message:
    raise Interrupted(signal.SIGINT)


@app.train("nothing")
def nothing(message: Message, context: Context) -> None:
    return None


@app.train("stranger")
def stranger(message: Message, context: Context) -> Message:
    reply = Message(RecordDict(), reply_to=message)
    reply.metadata.__dict__["_reply_to_message_id"] = "message-of-another"
    return reply


@app.train("unsendable")
def unsendable(message: Message, context: Context) -> Message:
    reply = Message(RecordDict(), reply_to=message)
    reply.content.__dict__["hook"] = lambda: None
    return reply


class ReadHereOnly(RecordDict):
    """What only the process that has made it can read."""

    def __reduce__(self) -> Any:
        return _only_in, (os.getpid(),)


def _only_in(process: int) -> RecordDict:
    if os.getpid() != process:
        raise OSError("not\nmine")
    return RecordDict()


@app.train("unreadable")
def unreadable(message: Message, context: Context) -> Message:
    context.state["seen"] = MetricRecord({"numbers": [99]})
    return Message(ReadHereOnly(), reply_to=message)


@app.train("disguise")
def disguise(message: Message, context: Context) -> Message:
    """Answer in the name of another node."""
    context.state["seen"] = MetricRecord({"numbers": [7]})
    message.metadata.dst_node_id += 1
    return Message(RecordDict(), reply_to=message)


@app.train("sleep")
def sleep(message: Message, context: Context) -> Message:
    time.sleep(message.content["task"]["number"])
    return Message(RecordDict(), reply_to=message)


@app.train("exit")
def exit_hard(message: Message, context: Context) -> Message:
    os._exit(3)


@app.train("fork")
def fork(message: Message, context: Context) -> Message:
    """Fork; the new process ends in one of three ways, or goes on as this one."""
    number = message.content["task"]["number"]
    child = os.fork()
    if child == 0 and number == 1:
        sys.exit(4)
    if child == 0 and number == 2:
        raise ValueError("the new process has no work")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else -1
    facts = ConfigRecord({"pid": os.getpid(), "status": status})
    return Message(RecordDict({"facts": facts}), reply_to=message)


@app.train("real_time")
def end_by_a_signal_without_a_name(message: Message, context: Context) -> Message:
    os.kill(os.getpid(), signal.SIGRTMIN + 3)
    raise AssertionError("unreachable")


@app.train("kill")
def kill(message: Message, context: Context) -> Message:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


@app.train("draw")
def draw(message: Message, context: Context) -> Message:
    """Draw a number from each global generator."""
    drawn = [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002, S311
    content = RecordDict({"drawn": MetricRecord({"numbers": drawn})})
    return Message(content, reply_to=message)


@app.train("visible")
def visible(message: Message, context: Context) -> Message:
    """Take a while, so that every worker has something to do."""
    time.sleep(float(message.content["task"]["number"]))
    found = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    facts = ConfigRecord({"pid": os.getpid(), "visible": found})
    return Message(RecordDict({"facts": facts}), reply_to=message)
