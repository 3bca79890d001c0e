"""What a trial needs of a fleet, however it is started."""

import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from scripts.edge.compose import Service

__all__ = ["Fleet", "TrialError", "wait_until"]


class TrialError(RuntimeError):
    """The fleet does not do what it promises; says what."""


class Fleet(ABC):
    """The services of a compose file, running.

    Use it as a context manager: on exit everything that was started is gone.

    Attributes
    ----------
    services : dict of str to Service
        What the compose file describes.
    app, data, results : str
        Folders as the SuperLink sees them: the app's, the data's, and one for the
        files of a run.
    """

    services: dict[str, Service]
    app: str
    data: str
    results: str

    def __enter__(self) -> Self:
        """Start all services."""
        try:
            self.up()
        except BaseException:
            # What could not be started can often not be ended, and is the news.
            with suppress(TrialError):
                self.down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End everything; an error that is under way is the one that is raised."""
        with suppress(TrialError) if error else nullcontext():
            self.down()

    @abstractmethod
    def up(self) -> None:
        """Start all services."""

    @abstractmethod
    def down(self) -> None:
        """End everything that was started, and remove what it leaves."""

    @abstractmethod
    def add(self, service: Service) -> None:
        """Start a device that the compose file does not have."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """Kill a service without a warning."""

    @abstractmethod
    def restart(self, name: str) -> None:
        """Start a service that was killed."""

    @abstractmethod
    def log(self, name: str) -> str:
        """Return what a service has printed so far."""

    @abstractmethod
    def flwr(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the ``flwr`` command beside the SuperLink, its output in a pipe."""

    @abstractmethod
    def read(self, path: str) -> str:
        """Return a file that the SuperLink sees, "" if there is none."""

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Return what a ``flwr`` command answers in JSON.

        Raises
        ------
        TrialError
            If it answers anything else.
        """
        out, _ = self.flwr(*arguments, "--format", "json").communicate()
        try:
            answer: dict[str, Any] = json.loads(out[out.index("{") :])
        except ValueError as error:
            raise TrialError(f"flwr {' '.join(arguments)}: {out}") from error
        return answer

    def online(self) -> int:
        """Return how many devices are online, as the SuperLink sees it."""
        nodes = self.ask("supernode", "list", "edge").get("nodes", [])
        return sum(node["status"] == "online" for node in nodes)


def wait_until(
    condition: Callable[[], object], what: str, patience: float, pause: float = 1.0
) -> None:
    """Wait until a condition holds.

    Raises
    ------
    TrialError
        If it does not in so many seconds.
    """
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TrialError(f"not in {patience:.0f} s: {what}")
        time.sleep(pause)
