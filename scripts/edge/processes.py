"""A fleet without containers: the same commands, started as processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts.edge.compose import Service, read_compose
from scripts.edge.fleet import Fleet, TrialError
from scripts.edge.image import read_image
from scripts.edge.local import ROOT, places_of
from scripts.flwr_run import free_ports, python_path

__all__ = ["ProcessFleet"]

_DOCKERFILE = ROOT / "docker" / "Dockerfile"
_BIN = Path(sys.executable).parent
_SERVER_PORTS = (
    "ASYNCDROP_PORT",
    "ASYNCDROP_CONTROL_PORT",
    "ASYNCDROP_RUNTIME_PORT",
    "ASYNCDROP_HEALTH_PORT",
)
_DEVICE_PORTS = ("ASYNCDROP_PORT", "ASYNCDROP_HEALTH_PORT")
# What Docker does when a container ends.
_RESTARTS = {
    "no": 'exec "$@"',
    "on-failure": 'until "$@"; do sleep 1; done',
    "unless-stopped": 'while :; do "$@"; sleep 1; done',
}


class ProcessFleet(Fleet):
    """The services of a compose file as processes of this machine.

    Entrypoints, variables and credentials are those of the compose file and of the
    Dockerfile. Instead of mounts a process is told of the folders themselves, instead
    of an address of its own it has free ports. Limits of CPU and memory do not hold.

    Parameters
    ----------
    compose : Path
        The compose file.
    home : Path
        Folder for everything that the processes write.
    variables : mapping of str to str
        What the compose file's ``${NAME}`` stand for.
    without : sequence of str
        Services to leave out.
    """

    def __init__(
        self,
        compose: Path,
        home: Path,
        variables: Mapping[str, str],
        without: tuple[str, ...] = (),
    ) -> None:
        found = read_compose(compose, variables)
        self.services = {k: v for k, v in found.items() if k not in without}
        self._home = home
        self._python_path = python_path(home, os.environ)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(len(_SERVER_PORTS))
        self._server_ports = dict(zip(_SERVER_PORTS, ports, strict=True))
        fleet, control, *_ = ports
        self._addresses = {
            "superlink:9092": f"localhost:{fleet}",
            "control": "localhost",
            "control:9092": f"localhost:{fleet}",
            "control:9093": f"localhost:{control}",
        }
        places = places_of(self.services["superlink"], self._folder("superlink"))
        self.app, self.data, self.results = (
            places.local(inside)
            for inside in ("/app", "/data", "/var/lib/asyncdrop/run")
        )

    def up(self) -> None:
        """Start all services, and wait for the one that ends by itself."""
        for service in self.services.values():
            self.add(service)
            if service.name == "register" and self._processes["register"].wait():
                raise TrialError(self.log("register"))

    def down(self) -> None:
        """End all processes, and all that they have started."""
        for process in self._processes.values():
            _kill(process)

    def add(self, service: Service) -> None:
        """Start a service as its container would start."""
        image = read_image(_DOCKERFILE, service.target)
        folder = self._folder(service.name)
        places = places_of(service, folder, self._addresses)
        program, *arguments = (
            places.local(part) for part in service.entrypoint or image.entrypoint
        )
        with self._log(service.name).open("ab") as output:
            self._processes[service.name] = subprocess.Popen(
                [
                    *("sh", "-c", _RESTARTS[service.restart], "sh"),
                    *(str(_BIN / program), *arguments),
                ],
                env=self._environment(service),
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill a service with all that it has started, as a container ends."""
        _kill(self._processes[name])

    def restart(self, name: str) -> None:
        """Start a service that was killed."""
        self.add(self.services[name])

    def log(self, name: str) -> str:
        """Return what a service has printed so far."""
        return self._log(name).read_text()

    def flwr(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the ``flwr`` command with the SuperLink's configuration."""
        return subprocess.Popen(
            [str(_BIN / "flwr"), *arguments],
            env=self._environment(self.services["superlink"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read(self, path: str) -> str:
        """Return a file's text, "" if there is none."""
        return Path(path).read_text() if Path(path).exists() else ""

    def _environment(self, service: Service) -> dict[str, str]:
        """Return the variables of a container, with what is true for a process."""
        image = read_image(_DOCKERFILE, service.target)
        places = places_of(service, self._folder(service.name), self._addresses)
        values = {**image.environment, **service.environment}
        if service.name == "superlink":
            ports = self._server_ports
        else:
            numbers = free_ports(len(_DEVICE_PORTS))
            ports = dict(zip(_DEVICE_PORTS, numbers, strict=True))
        return {
            **os.environ,
            **{name: places.local(value) for name, value in values.items()},
            **{name: str(number) for name, number in ports.items()},
            "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
            **self._python_path,
        }

    def _folder(self, name: str) -> Path:
        folder = self._home / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
