"""The order in which tasks are taken up."""

import heapq
from collections import deque
from collections.abc import Collection
from itertools import count

from flwr.app import Message


class TaskQueue:
    """First in, first out, but never two messages of one node at the same time.

    A node's context passes from each of its tasks to the next.
    """

    def __init__(self) -> None:
        self._numbers = count()
        # Per node: its messages, oldest first; the first one stays until `done`.
        self._lines: dict[int, deque[tuple[int, Message]]] = {}
        # The nodes whose first message may be taken, by its number.
        self._ready: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        """Tell whether there is a message to take now."""
        return bool(self._ready)

    def push(self, message: Message) -> None:
        """Add a message for the node that its metadata names."""
        node = message.metadata.dst_node_id
        entry = (next(self._numbers), message)
        line = self._lines.setdefault(node, deque())
        line.append(entry)
        if len(line) == 1:
            heapq.heappush(self._ready, (entry[0], node))

    def pop(self) -> Message:
        """Take the oldest message whose node is free; the node is then busy."""
        _, node = heapq.heappop(self._ready)
        return self._lines[node][0][1]

    def done(self, node: int) -> None:
        """Free a node whose message was popped."""
        line = self._lines[node]
        line.popleft()
        if line:
            heapq.heappush(self._ready, (line[0][0], node))
        else:
            del self._lines[node]

    def drop(self, message_ids: Collection[str]) -> None:
        """Keep none of these messages, but for those that were popped."""
        free = {node for _, node in self._ready}
        for node, line in list(self._lines.items()):
            begun = [] if node in free else [line[0]]
            waiting = list(line)[len(begun) :]
            kept = [each for each in waiting if _id_of(each[1]) not in message_ids]
            self._lines[node] = deque(begun + kept)
            if not self._lines[node]:
                del self._lines[node]
        self._ready = [
            (self._lines[node][0][0], node) for node in free & self._lines.keys()
        ]
        heapq.heapify(self._ready)


def _id_of(message: Message) -> str:
    return message.metadata.message_id
