"""Who runs the tasks of the local grid: the interface, and the plain way."""

import pickle
from abc import ABC, abstractmethod
from collections import deque

from flwr_asyncdrop.simulation.task import (
    Answer,
    ClientAppSource,
    Task,
    answer,
    load_client_app,
)


class Runner(ABC):
    """Runs tasks; used from one thread."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another task can be submitted now."""

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Take over a task; only while there is room."""

    @abstractmethod
    def collect(self, timeout: float | None) -> list[Answer]:
        """Return answers that have not been returned yet.

        Parameters
        ----------
        timeout : float | None
            Seconds to wait while there is none; ``None`` waits as long as it takes.
            Fewer may pass: an empty list does not mean that the time is over.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop, and forget what has not been answered; may be called again."""


class InlineRunner(Runner):
    """Runs each task in the calling process when its answer is asked for.

    Parameters
    ----------
    client_app : str | Callable[[], ClientApp]
        What runs.

    Raises
    ------
    ConfigError
        The ClientApp cannot be loaded.
    """

    def __init__(self, client_app: ClientAppSource) -> None:
        self._app = load_client_app(client_app)
        self._tasks: deque[bytes] = deque()

    @property
    def has_room(self) -> bool:
        """One task at a time: the next one sees what the caller does until then."""
        return not self._tasks

    def submit(self, task: Task) -> None:
        """Keep the task, as it is now."""
        self._tasks.append(pickle.dumps(task))

    def collect(self, timeout: float | None) -> list[Answer]:
        """Run the task there is."""
        if not self._tasks:
            return []
        # S301: pickled above. The client must not share memory with the server.
        task: Task = pickle.loads(self._tasks.popleft())  # noqa: S301  # bytes of this grid
        return [answer(self._app, task)]

    def close(self) -> None:
        """Forget the task there is."""
        self._tasks.clear()
