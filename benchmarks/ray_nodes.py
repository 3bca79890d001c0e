"""A Ray cluster of several nodes on this machine, for the benchmark and the tests."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

__all__ = ["RayNode", "RayNodes"]

_STARTED = "Ray runtime started"
_SECONDS = 90.0
# A node that is killed is known to be dead after seconds, not half a minute.
_VARIABLES = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}


class RayNode:
    """A ``ray start`` in the foreground: all its processes end with it."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        # Sockets lie in it: a path of at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._log = self._folder / "start.log"
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *("--num-cpus=2", "--object-store-memory=100000000"),
            f"--temp-dir={self._folder}",
            *arguments,
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_VARIABLES, **environment},
                cwd=self._folder,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it has started."""
        end = time.monotonic() + _SECONDS
        while _STARTED not in self._log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > end:
                text = self._log.read_text(errors="replace")
                self.close()
                raise RuntimeError(f"ray start failed:\n{text}")
            time.sleep(0.1)

    @property
    def family(self) -> list[psutil.Process]:
        """Its processes: raylet, workers and helpers."""
        with suppress(psutil.NoSuchProcess):
            this = psutil.Process(self.process.pid)
            return [this, *this.children(recursive=True)]
        return []

    @property
    def raylet(self) -> psutil.Process | None:
        """Its raylet, if it is there."""
        return next((p for p in self.family if _name(p) == "raylet"), None)

    @property
    def actors(self) -> list[psutil.Process]:
        """Its processes in which an actor of a runner lives."""
        return [each for each in self.family if "CallActor" in _name(each)]

    def close(self) -> None:
        """Kill all of it."""
        for process in self.family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class RayNodes:
    """The nodes of one cluster; the first one is its head. A context manager."""

    def __init__(self, count: int = 2, environment: dict[str, str] | None = None):
        self._environment = environment or {}
        port, client_port = _free_port(), _free_port()
        self.address = f"127.0.0.1:{port}"
        self.nodes: list[RayNode] = []
        head = [
            *("--head", f"--port={port}", "--node-ip-address=127.0.0.1"),
            *("--include-dashboard=false", f"--ray-client-server-port={client_port}"),
        ]
        try:
            self._start(head).wait()
            for _ in range(count - 1):
                self.add(wait=False)
            for node in self.nodes[1:]:
                node.wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all nodes."""
        for node in reversed(self.nodes):
            node.close()

    def add(self, *arguments: str, wait: bool = True, **environment: str) -> RayNode:
        """Let another node join."""
        node = self._start(
            [f"--address={self.address}", "--node-ip-address=127.0.0.1", *arguments],
            environment,
        )
        if wait:
            node.wait()
        return node

    def _start(
        self, arguments: list[str], environment: dict[str, str] | None = None
    ) -> RayNode:
        node = RayNode(arguments, {**self._environment, **(environment or {})})
        self.nodes.append(node)
        return node


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""
