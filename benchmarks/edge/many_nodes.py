"""Many SuperNodes in one process: Flower's connection, and a ClientApp called in place.

python -m benchmarks.edge.many_nodes ADDRESS DEVICES MAX_POLL TASK_SECONDS
"""

import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supernode.fleet_http_connection import http_request_response

from flwr_asyncdrop.client_app import app
from flwr_asyncdrop.flower_internals.pace import Pace

_LEAST_POLL = 1.0
_SPEEDS = 8
_SLOWEST = 5.0  # times as slow as the fastest
_JOINING_SECONDS = 0.2  # a device: they would shut each other out
_SAY_SECONDS = 5.0

# Training is short, and PyTorch is one for all of them.
_training = threading.Lock()


@dataclass
class Node:
    """A device that looks for tasks as ``asyncdrop supernode`` does.

    A task of training takes it `task_seconds`, or five times as long, by its number.
    """

    address: str
    number: int
    of: int
    max_poll: float
    task_seconds: float
    connected: bool = False
    done: int = 0
    _contexts: dict[int, Context] = field(default_factory=dict)

    def work(self) -> None:
        """Join after a while, and do tasks until the process ends."""
        generator = random.Random(self.number)  # noqa: S311  # no secret
        time.sleep(generator.uniform(0, _JOINING_SECONDS * self.of))
        pace = Pace(_LEAST_POLL)
        with http_request_response(self.address, insecure=True) as connection:
            self.connected = True
            while True:
                try:
                    found = self._look(*connection)
                except Exception:  # the others go on
                    traceback.print_exc()
                    found = False
                if found:
                    pace.end()
                else:
                    time.sleep(pace.next(self.max_poll))

    def _look(
        self,
        node_id: int,
        receive: Callable[[], Any],
        send: Callable[..., Any],
        get_run: Callable[[int], Any],
        get_fab: Callable[[str, int], Any],
        pull_object: Callable[[int, str], bytes],
        push_object: Callable[[int, str, str, bytes], None],
        confirm: Callable[[int, str], None],
    ) -> bool:
        """Do a task, if there is one."""
        received = receive()
        if received is None:
            return False
        began = time.monotonic()
        head, tree = received
        run_id = head.metadata.run_id
        if run_id not in self._contexts:
            run = get_run(run_id)
            fab = get_fab(run.fab_hash, run_id)
            config = get_fused_config_from_fab(fab.content, run)
            self._contexts[run_id] = self._context(node_id, run, config)
        message = pull_and_inflate_object_from_tree(
            tree,
            lambda name: pull_object(run_id, name),
            lambda name: confirm(run_id, name),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        reply = self._reply(message, self._contexts[run_id], began)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            objects = get_all_nested_objects(reply)
            seconds = time.monotonic() - began
            names, session = send(reply, get_object_tree(reply), seconds)
            push_objects(
                objects,
                lambda name, content: push_object(run_id, session, name, content),
                object_ids_to_push=names,
            )
        self.done += 1
        return True

    def _context(self, node_id: int, run: Any, config: Any) -> Context:
        return Context(
            run_id=run.run_id,
            node_id=node_id,
            node_config={"partition-id": self.number, "num-partitions": self.of},
            state=RecordDict(),
            run_config=config,
            series_id=run.series_id,
        )

    def _reply(self, message: Message, context: Context, began: float) -> Message:
        try:
            with _training:
                reply = app(message=message, context=context)
        except Exception as error:  # as Flower's SuperNode answers
            traceback.print_exc()
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code, str(error)), reply_to=message)
        if "arrays" in message.content:
            slower = 1 + (_SLOWEST - 1) * (self.number % _SPEEDS) / (_SPEEDS - 1)
            rest = self.task_seconds * slower - (time.monotonic() - began)
            time.sleep(max(rest, 0.0))
        return reply


def main(address: str, devices: int, max_poll: float, task_seconds: float) -> None:
    """Run the devices until the process is killed, and say what they do."""
    torch.set_num_threads(1)
    # Flower sends it to the process of a device that the SuperLink shuts out.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nodes = [
        Node(address, number, devices, max_poll, task_seconds)
        for number in range(devices)
    ]
    for node in nodes:
        threading.Thread(target=node.work, daemon=True).start()
    while True:
        connected = sum(node.connected for node in nodes)
        done = sum(node.done for node in nodes)
        print(f"{connected} connected, {done} tasks", flush=True)
        time.sleep(_SAY_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
