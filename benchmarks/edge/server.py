"""A server that sends one task at a time, to one SuperNode after the other."""

import json
import time
from collections.abc import Iterator, Sequence
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
        from the reply before.
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
    for answer in _ask_in_turns(
        Mailbox(grid),
        nodes,
        blocks=int(settings["blocks"]),
        tasks=int(settings["tasks"]),
        ahead=int(settings["ahead"]),
        coding=wire.Coding(str(settings["codec"]), str(settings["codec"])),
    ):
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
    mailbox: Mailbox,
    nodes: Sequence[int],
    *,
    blocks: int,
    tasks: int,
    ahead: int,
    coding: wire.Coding,
) -> Iterator[Answer]:
    for block in range(blocks):
        for node in nodes:
            yield from _ask(mailbox, node, block, tasks, ahead, coding)


def _ask(
    mailbox: Mailbox,
    node: int,
    block: int,
    tasks: int,
    ahead: int,
    coding: wire.Coding,
) -> Iterator[Answer]:
    """Have a SuperNode do tasks one after the other, with some pushed ahead."""
    out = [_push(mailbox, node, coding) for _ in range(min(tasks, 1 + ahead))]
    since = time.perf_counter()
    for number in range(tasks):
        reply = mailbox.wait([out.pop(0)], _PATIENCE)
        now = time.perf_counter()
        if reply is None or reply.has_error():
            raise RuntimeError(f"node {node}: {reply and reply.error}")
        metrics = reply.content["metrics"]
        yield Answer(
            block,
            number,
            int(metrics["partition"]),
            now - since,
            int(metrics["process"]),
            int(metrics["parent"]),
            metrics["draw"],
            metrics["cpu"],
        )
        # Another reply may be there already, and this one's time is over.
        since = time.perf_counter() if not out else now
        if number + len(out) + 1 < tasks:
            out.append(_push(mailbox, node, coding))


def _push(mailbox: Mailbox, node: int, coding: wire.Coding) -> str:
    weights = {"weights": torch.rand(_MEGABYTE_OF_FLOATS)}
    content = RecordDict(
        {
            "arrays": wire.encode_weights(weights, coding),
            "config": ConfigRecord(coding.entries("arrays")),
        }
    )
    message = Message(content, dst_node_id=node, message_type="train")
    if (message_id := mailbox.push(message)) is None:
        raise RuntimeError(f"no task could be pushed to node {node}")
    return message_id
