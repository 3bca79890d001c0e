"""A fleet in containers, as podman-compose starts it from the compose file itself."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scripts.edge.compose import Service, read_compose
from scripts.edge.fleet import Fleet, TrialError

__all__ = ["ContainerFleet", "containers_run"]

_RESULTS = "/var/lib/asyncdrop/run"
# What plain podman needs where there is no systemd: limits that it may set, and runc
# (crun does not start on hybrid cgroups).
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
"""


def containers_run() -> bool:
    """Return whether podman and podman-compose are there, and podman answers."""
    if not shutil.which("podman-compose") or not shutil.which("podman"):
        return False
    asked = subprocess.run(["podman", "info"], capture_output=True, check=False)
    return asked.returncode == 0


class ContainerFleet(Fleet):
    """The services of a compose file in containers.

    Parameters
    ----------
    compose : Path
        The compose file.
    variables : mapping of str to str
        What its ``${NAME}`` stand for.
    without : sequence of str
        Services to leave out.
    keep_images : bool
        Whether the images stay when the fleet is gone.
    """

    app = "/app"
    data = "/data"
    results = _RESULTS

    def __init__(
        self,
        compose: Path,
        variables: Mapping[str, str],
        without: tuple[str, ...] = (),
        keep_images: bool = False,
    ) -> None:
        found = read_compose(compose, variables)
        self.services = {k: v for k, v in found.items() if k not in without}
        self._compose_file = compose
        self._keep_images = keep_images
        self._extra: list[str] = []
        self._project = f"edge-test-{os.getpid()}"
        self._configuration = tempfile.NamedTemporaryFile("w", suffix=".conf")  # noqa: SIM115 - closed by down
        self._configuration.write(_CONFIGURATION)
        self._configuration.flush()
        self._environment = {
            **os.environ,
            **variables,
            "CONTAINERS_CONF": self._configuration.name,
            # Health checks are part of Docker's image format only.
            "BUILDAH_FORMAT": "docker",
            "BUILDAH_ISOLATION": "chroot",
        }

    def up(self) -> None:
        """Build the images, one after the other, and start all services."""
        self._compose(
            *("--parallel", "1", "--podman-build-args", "--network host --layers"),
            *("build", "superlink", "device-0"),
        )
        self._compose("up", "--detach", "--no-build", *self.services)

    def down(self) -> None:
        """Remove containers, network and volumes, and the images if asked to."""
        for name in self._extra:
            self._podman("rm", "--force", "--time", "0", self._name(name))
        self._compose("down", "--volumes", "--timeout", "10")
        if not self._keep_images:
            for image in {service.image for service in self.services.values()}:
                self._podman("rmi", image, check=False)  # it may not have been built
        self._configuration.close()

    def add(self, service: Service) -> None:
        """Start a container as those of the fleet are, on its networks."""
        self._extra.append(service.name)
        options = ["--init"]
        for network in service.networks:
            options += ["--network", f"{self._project}_{network}"]
        for key, value in service.environment.items():
            options += ["--env", f"{key}={value}"]
        for mount in service.mounts:
            options += ["--volume", f"{mount.source}:{mount.target}:ro"]
        name = self._name(service.name)
        self._podman("run", "--detach", "--name", name, *options, service.image)

    def kill(self, name: str) -> None:
        """Kill a container."""
        self._podman("kill", self._name(name))

    def restart(self, name: str) -> None:
        """Start a container that was killed."""
        self._podman("start", self._name(name))

    def log(self, name: str) -> str:
        """Return what a container has printed so far, since it was made."""
        return self._podman("logs", self._name(name), check=False)

    def flwr(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the ``flwr`` command in the SuperLink's container."""
        return subprocess.Popen(
            ["podman", "exec", self._name("superlink"), "flwr", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read(self, path: str) -> str:
        """Return a file of the SuperLink's container, "" if there is none."""
        return self._podman(
            "exec",
            self._name("superlink"),
            "sh",
            "-c",
            f"cat {path} 2>/dev/null || true",
        )

    def _name(self, service: str) -> str:
        return f"{self._project}_{service}_1"

    def _compose(self, *arguments: str) -> None:
        self._do(
            "podman-compose",
            *("--project-name", self._project, "--in-pod", "false"),
            *("--file", str(self._compose_file)),
            *arguments,
        )

    def _podman(self, *arguments: str, check: bool = True) -> str:
        return self._do("podman", *arguments, check=check)

    def _do(self, *command: str, check: bool = True) -> str:
        """Run a command, and return what it printed.

        Raises
        ------
        TrialError
            If it fails, with what it printed.
        """
        done = subprocess.run(
            command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise TrialError(f"{' '.join(command)}: {done.stdout}")
        return done.stdout
