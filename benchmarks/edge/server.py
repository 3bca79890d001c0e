"""A server that sends tasks which take no time, to one SuperNode or to all at once."""

import json
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from flwr_asyncdrop import wire
from flwr_asyncdrop.server.mailbox import Mailbox

__all__ = ["Answer", "app", "read_answers"]

_MEGABYTE_OF_FLOATS = 250_000
_PATIENCE = 120.0
_POLL = 0.1

app = ServerApp()


@dataclass(frozen=True)
class Answer:
    """A reply and what it took.

    Attributes
    ----------
    block, number : int
        Which turn of the SuperNode it was, and which task in it.
    partition : int
        The SuperNode's.
    seconds : float
        From pushing the task to having the reply; for a task that was pushed ahead,
        and where all SuperNodes have tasks at once, from the reply before.
    process, parent : int
        Numbers of the process that did the task, and of its parent.
    draw : float
        The process's first random number.
    cpu : float
        CPU seconds of the process, from its start to the reply.
    """

    block: int
    number: int
    partition: int
    seconds: float
    process: int
    parent: int
    draw: float
    cpu: float


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Take the time, and write it to the file that the run-config names."""
    settings = context.run_config
    nodes = _wait_for_nodes(grid, int(settings["nodes"]))
    output = Path(str(settings["output"]))
    codec, tasks = str(settings["codec"]), int(settings["tasks"])
    tensors = int(settings["tensors"])
    mailbox = Mailbox(grid, packs=bool(settings["packs"]))
    sender = _Sender(mailbox, wire.Coding(codec, codec), tensors)
    if settings["at-once"]:
        answers = _ask_all(sender, nodes, tasks)
    else:
        blocks, ahead = int(settings["blocks"]), int(settings["ahead"])
        answers = _ask_in_turns(sender, nodes, blocks, tasks, ahead)
    for answer in answers:
        with output.open("a") as file:
            file.write(f"{json.dumps(asdict(answer))}\n")


def read_answers(path: Path) -> list[Answer]:
    """Return the answers that a run has written so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Answer(**json.loads(line)) for line in lines]


def _wait_for_nodes(grid: Grid, count: int) -> list[int]:
    deadline = time.monotonic() + _PATIENCE
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(nodes)} of {count} SuperNodes came")
        time.sleep(_POLL)
    return nodes


def _ask_in_turns(
    sender: "_Sender", nodes: Sequence[int], blocks: int, tasks: int, ahead: int
) -> Iterator[Answer]:
    for block in range(blocks):
        for node in nodes:
            yield from _ask(sender, node, block, tasks, ahead)


def _ask(
    sender: "_Sender", node: int, block: int, tasks: int, ahead: int
) -> Iterator[Answer]:
    """Have a SuperNode do tasks one after the other, with some pushed ahead."""
    out = [sender.push(node) for _ in range(min(tasks, 1 + ahead))]
    since = time.perf_counter()
    for number in range(tasks):
        reply = sender.wait([out.pop(0)])
        now = time.perf_counter()
        yield _answer(reply, block, number, now - since)
        # Another reply may be there already, and this one's time is over.
        since = time.perf_counter() if not out else now
        if number + len(out) + 1 < tasks:
            out.append(sender.push(node))


def _ask_all(sender: "_Sender", nodes: Sequence[int], tasks: int) -> Iterator[Answer]:
    """Have all SuperNodes do tasks until there are so many answers."""
    out = {sender.push(node): node for node in nodes}
    since = time.perf_counter()
    for number in range(tasks):
        reply = sender.wait(out)
        now = time.perf_counter()
        yield _answer(reply, 0, number, now - since)
        since = now
        node = out.pop(reply.metadata.reply_to_message_id)
        out[sender.push(node)] = node


def _answer(reply: Message, block: int, number: int, seconds: float) -> Answer:
    metrics = {
        name: float(str(value))
        for name, value in reply.content.metric_records["metrics"].items()
    }
    return Answer(
        block,
        number,
        int(metrics["partition"]),
        seconds,
        int(metrics["process"]),
        int(metrics["parent"]),
        metrics["draw"],
        metrics["cpu"],
    )


@dataclass(frozen=True)
class _Sender:
    """Sends a megabyte of weights in so many tensors."""

    mailbox: Mailbox
    coding: wire.Coding
    tensors: int

    def push(self, node: int) -> str:
        count = _MEGABYTE_OF_FLOATS // self.tensors
        weights = {f"weights.{i}": torch.rand(count) for i in range(self.tensors)}
        content = RecordDict(
            {
                "arrays": wire.encode_weights(weights, self.coding),
                "config": ConfigRecord({**self.coding.entries("arrays")}),
            }
        )
        message = Message(content, dst_node_id=node, message_type="train")
        if (message_id := self.mailbox.push(message)) is None:
            raise RuntimeError(f"no task could be pushed to node {node}")
        return message_id

    def wait(self, message_ids: Collection[str]) -> Message:
        reply = self.mailbox.wait(message_ids, _PATIENCE)
        if reply is None or reply.has_error():
            raise RuntimeError(f"a task was lost: {reply and reply.error}")
        return reply
