"""A Grid between the server and the real one that loses and repeats messages."""

from collections.abc import Iterable
from threading import Lock
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from benchmarks.chaos.faults import Fault, Plan
from benchmarks.chaos.ledger import Ledger
from flwr_asyncdrop import wire
from flwr_asyncdrop.flower_internals.grids import answers_at_once

__all__ = ["ChaoticGrid"]

_PUSHES_AWAY = 12


class ChaoticGrid(Grid):
    """Flower's grid, or a `LocalGrid`, on a bad day.

    It does to message 0, 1, ... what its plan says, and notes in the ledger which
    answers it has handed over to the server.

    Parameters
    ----------
    grid : Grid
        The one that works.
    plan : Plan
        The fault of each message that is pushed.
    ledger : Ledger
        Where all is noted.
    """

    def __init__(self, grid: Grid, plan: Plan, ledger: Ledger) -> None:
        self._grid = grid
        self._plan = plan
        self._ledger = ledger
        # What was sent before a restart meets the fault that it met then.
        self._known = {
            push["seed"]: push["fault"] and Fault(push["fault"])
            for push in ledger.entries("push")
        }
        self._seeds: dict[str, int] = {}
        self._faults: dict[str, Fault] = {}
        self._swallowed: set[str] = set()
        self._again: list[Message] = []
        self._away: dict[int, int] = {}
        self._lock = Lock()

    @property
    def answers_at_once(self) -> bool:
        """Whether the grid that works does: else its calls are made in threads."""
        return answers_at_once(self._grid)

    @property
    def run(self) -> Run:
        """The run, as the grid has it."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        """Create a message."""
        return self._grid.create_message(*arguments, **options)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Do a synchronous round."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> list[int]:
        """Return the nodes but those that have left."""
        return [node for node in self._grid.get_node_ids() if node not in self._away]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Push messages, or do not."""
        ids: list[str] = []
        for message in messages:
            self._come_back()
            node = message.metadata.dst_node_id
            seed = wire.read_task(message).seed
            fault = self._known.setdefault(seed, self._plan[len(self._known)])
            self._ledger.note("push", fault=fault, seed=seed)
            if fault is Fault.NOT_SENT or node in self._away:
                continue
            pushed = list(self._grid.push_messages([message]))
            self._ledger.note("pushed", seed=seed)
            for message_id in pushed:
                self._seeds[message_id] = seed
                if fault is not None:
                    self._faults[message_id] = fault
                ids.append(message_id)
            if fault is Fault.NODE_LEAVES:
                self._away[node] = _PUSHES_AWAY
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Pull replies: all, fewer, or more than there are."""
        asked = [name for name in message_ids if name not in self._swallowed]
        replies = list(self._grid.pull_messages(asked)) if asked else []
        with self._lock:
            return self._handed(replies)

    def _handed(self, replies: Iterable[Message]) -> list[Message]:
        handed, self._again = self._again, []
        for reply in replies:
            message_id = reply.metadata.reply_to_message_id
            fault = self._faults.pop(message_id, None)
            if fault is Fault.SWALLOWED:
                self._swallowed.add(message_id)
                continue
            # In place of an answer that it has lost, Flower delivers an error.
            if not reply.has_error():
                self._ledger.note("delivered", seed=self._seeds.pop(message_id, None))
            handed.append(reply)
            if fault is Fault.DUPLICATE:
                handed.append(reply)
            elif fault is Fault.AGAIN:
                self._again.append(reply)
        return handed

    def _come_back(self) -> None:
        for node in list(self._away):
            self._away[node] -= 1
            if not self._away[node]:
                del self._away[node]
