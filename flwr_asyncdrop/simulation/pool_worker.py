"""One worker process of the local grid, as its pool sees it."""

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from flwr_asyncdrop.simulation.fork_server import end_process
from flwr_asyncdrop.simulation.liveness import LivenessLimits, Watch, look
from flwr_asyncdrop.simulation.runner import ClientCall
from flwr_asyncdrop.simulation.transport import Notice


@dataclass(eq=False)
class PoolWorker:
    """A worker process, with both ends of its channel.

    The far end stays open here to take back notices that the worker has not read: the
    system gives each notice to one reader only, so a call is either taken back or
    begun, never both.
    """

    process: BaseProcess
    channel: socket.socket
    far_end: socket.socket
    watch: Watch
    gpu: str
    is_ready: bool = False
    held: dict[int, ClientCall] = field(default_factory=dict)
    """The calls that it has, by slot."""
    started: int | None = None
    """When its process did, as the system counts."""

    @property
    def pid(self) -> int:
        """Its number, which a process that was started has."""
        return self.process.pid or 0

    @property
    def is_there(self) -> bool:
        """Whether its process has not ended, whatever is said of it."""
        sight = look(self.pid)
        if sight is None or sight.is_gone:
            return False
        return sight.started == self.started

    def give(self, notice: Notice, call: ClientCall) -> None:
        """Hand it a call, which lies in the slot of the notice."""
        self.held[notice.slot] = call
        notice.send(self.channel)

    def take_back(self) -> tuple[Notice, ClientCall] | None:
        """Take back the oldest call that the worker has not begun, if any."""
        notice = Notice.receive(self.far_end, wait=False)
        return None if notice is None else (notice, self.held.pop(notice.slot))

    def close(self, limits: LivenessLimits) -> None:
        """End its process, if it has not ended."""
        self.channel.close()
        self.far_end.close()
        end_process(self.process, self.started, limits)
        with suppress(ValueError):  # not even its fork server's death has ended it
            self.process.close()
