"""A real SuperLink with real SuperNodes on this machine, which can be killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from scripts.flwr_run import (
    end_processes,
    folder,
    free_ports,
    has_mark,
    python_path,
)
from scripts.transport import installed_transport

__all__ = ["Deployment"]

_BIN = Path(sys.executable).parent
_HOST = "127.0.0.1"
_PATIENCE = 60.0
_POLL = 0.2
_SERVER_APP = "flwr-serverapp"
_AN_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception)\b")


class Deployment:
    """A SuperLink and SuperNodes on free ports, with a home of their own.

    Use it as a context manager: on exit it ends every process that was started for
    it, also those that Flower's own processes have started.

    Parameters
    ----------
    home : Path
        Folder of Flower's files, of the SuperLink's database and of all logs.
    num_nodes : int
        SuperNodes that are started at first.
    survives_superlink : bool
        Whether the ServerApp outlives its SuperLink: then it is started by a
        SuperExec of its own (``--isolation process``), else by the SuperLink, which
        takes it along when it dies (Flower's default).
    supernodes : sequence of sequence of str
        Commands that the SuperNodes' arguments are added to, taken in turn.
    database : str
        The SuperLink's; a file in `home` unless given.
    **environment : str
        Variables of all processes, on top of this process's.

    Raises
    ------
    RuntimeError
        If the SuperLink does not listen within a minute.
    SystemExit
        If Flower is of a version that this cannot start, by one line.
    """

    def __init__(
        self,
        home: Path,
        num_nodes: int,
        *,
        survives_superlink: bool = False,
        supernodes: Sequence[Sequence[str]] = (("flower-supernode",),),
        database: str = "",
        **environment: str,
    ) -> None:
        self.home = home
        self.num_nodes = num_nodes
        self._survives_superlink = survives_superlink
        self._supernodes = supernodes
        self._grpc = installed_transport() == "grpc"
        self._mark = uuid.uuid4().hex
        self._code = tempfile.TemporaryDirectory(prefix="flwr-code-", dir=folder())
        self._environment = {
            **os.environ,
            "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "ASYNCDROP_RUN": self._mark,
            **environment,
        }
        self._environment |= python_path(Path(self._code.name), self._environment)
        fleet, control, runtime, *self._node_ports = free_ports(3 + num_nodes)
        self._fleet, self._runtime = (
            f"{_HOST}:{port}" for port in (fleet, runtime if self._grpc else fleet)
        )
        self._control = f"{_HOST}:{control if self._grpc else fleet}"
        if self._grpc:
            self._apis = ["--fleet-api-address", self._fleet]
            self._apis += ["--serverappio-api-address", self._runtime]
        else:
            self._apis = ["--host", _HOST, "--port", str(fleet)]
        self._apis += ["--control-api-address", f"{_HOST}:{control}"]
        self._apis += ["--database", database or str(home / "superlink.db")]
        if survives_superlink:
            self._apis += ["--isolation", "process"]
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self.superlink = self.start_superlink()
            if survives_superlink:
                self._start_superexec()
            self.nodes = [self.start_node(number) for number in range(num_nodes)]
        except BaseException:
            self.end()
            raise
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "{self._control}"\ninsecure = true\n'
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def address(self) -> str:
        """Where SuperNodes find the SuperLink."""
        return self._fleet

    def end(self) -> None:
        """End all processes."""
        end_processes(self._mark)
        for process in self._processes:
            process.wait(timeout=10)
        self._code.cleanup()

    def start_superlink(self) -> subprocess.Popen[bytes]:
        """Start the SuperLink, with the database that is there, and wait for it."""
        self.superlink = self._start("flower-superlink", *self._apis)
        for address in {self._fleet, self._control, self._runtime}:
            _wait_for(address)
        return self.superlink

    def start_node(self, number: int) -> subprocess.Popen[bytes]:
        """Start the SuperNode that has the partition of this number."""
        port = self._node_ports[number]
        own = (
            ["--clientappio-api-address", f"{_HOST}:{port}"]
            if self._grpc
            else ["--host", _HOST, "--port", str(port)]
        )
        config = f"partition-id={number} num-partitions={self.num_nodes}"
        return self._start(
            *self._supernodes[number % len(self._supernodes)],
            *("--insecure", "--superlink", self._fleet),
            *("--node-config", config, *own),
            insecure=False,
        )

    def restart_node(self, number: int) -> None:
        """Kill a SuperNode and start it again, which makes it another node."""
        _kill(self.nodes[number])
        self.nodes[number] = self.start_node(number)

    def restart_superlink(self, seconds_down: float = 0.0) -> None:
        """Kill the SuperLink and start it again with its database.

        A ServerApp that does not outlive its SuperLink ends before that.

        Raises
        ------
        RuntimeError
            If it does not, in a minute.
        """
        _kill(self.superlink)
        if not self._survives_superlink:
            self._end_server_app()
        time.sleep(seconds_down)
        self.start_superlink()

    def run(self, app: Path, **settings: object) -> subprocess.Popen[bytes]:
        """Start ``flwr run --stream`` of an app with this run-config."""
        toml = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        return self._start(
            "flwr", "run", str(app), "--run-config", toml, "--stream", insecure=False
        )

    def is_serving(self) -> bool:
        """Return whether a ServerApp is alive."""
        return any(self._server_apps())

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        """Return what a process has printed so far."""
        return self._log(self._processes.index(process)).read_text()

    def logs(self) -> str:
        """Return what all processes have printed so far."""
        return "\n".join(
            f"--- {path.stem}\n{path.read_text()}"
            for path in sorted(self.home.glob("*.log"))
        )

    def last_error(self) -> str:
        """Return the last line of an exception that a process has printed, if any."""
        lines = [line.strip() for line in self.logs().splitlines()]
        errors = [line for line in lines if _AN_ERROR.match(line)]
        return errors[-1] if errors else f"its logs in {self.home} name no error"

    def _end_server_app(self) -> None:
        """Interrupt the ServerApp, and wait until it has ended.

        Flower does the same, by itself, when it sees that the parent of the ServerApp
        has gone. That takes a system that reaps orphans, which not every container is.
        """
        for app in list(self._server_apps()):
            with suppress(psutil.NoSuchProcess):
                app.send_signal(signal.SIGINT)
            try:
                app.wait(_PATIENCE)
            except psutil.TimeoutExpired as error:
                raise RuntimeError("a ServerApp does not heed SIGINT") from error

    def _server_apps(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if _SERVER_APP in " ".join(process.cmdline()) and has_mark(
                    process, self._mark
                ):
                    yield process

    def _start_superexec(self) -> None:
        address = (
            ["--appio-api-address", self._runtime, "--plugin-type", "serverapp"]
            if self._grpc
            else ["--runtime-api-address", self._runtime]
        )
        self._start("flower-superexec", *address)

    def _start(
        self, program: str, *arguments: str, insecure: bool = True
    ) -> subprocess.Popen[bytes]:
        command = [str(_BIN / program), *(["--insecure"] if insecure else [])]
        with self._log(len(self._processes)).open("w") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def _log(self, number: int) -> Path:
        return self.home / f"{number:02d}.log"


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # Its children look whether it exists, which a zombie does.
    process.wait()


def _wait_for(address: str) -> None:
    """Wait until somebody listens."""
    host, port = address.split(":")
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing listens on {address}") from error
            time.sleep(_POLL)
        else:
            return
