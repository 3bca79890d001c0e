"""A mod that times every task and writes down what it came to."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message

Call = Callable[[Message, Context], Message]


def log_tasks(msg: Message, context: Context, call_next: Call) -> Message:
    """Add a line to the log of this node: the round, the seconds and the metrics."""
    started = time.perf_counter()
    reply = call_next(msg, context)
    seconds = time.perf_counter() - started
    folder = context.run_config["log-dir"]
    if folder and reply.has_content():
        metrics = {
            k: v for m in reply.content.metric_records.values() for k, v in m.items()
        }
        line = {
            "kind": msg.metadata.message_type,
            "round": msg.content["config"]["server-round"],
            "seconds": seconds,
            **metrics,
        }
        path = Path(folder) / f"node-{msg.metadata.dst_node_id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            log.write(json.dumps(line) + "\n")
    return reply
