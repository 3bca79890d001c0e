"""``flwr run --stream`` that leaves no process behind.

Flower starts a local SuperLink and leaves it running for the next run. This gives the
run a SuperLink of its own, on free ports and with a home of its own, and ends it
afterwards. All arguments go to ``flwr run``; the exit status is that of the run.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psutil

_MARK = "ASYNCDROP_RUN"
_PATIENCE = 10


def main(arguments: list[str]) -> int:
    """Run ``flwr run`` and end every process that it started."""
    with tempfile.TemporaryDirectory(prefix="flwr-home-") as home:
        environment = run_environment(Path(home))
        try:
            return flwr_run(arguments, environment)
        finally:
            end_processes(environment[_MARK])


def run_environment(home: Path) -> dict[str, str]:
    """Return the environment of a run with a SuperLink of its own.

    Without runtime dependency installation Flower uses the environment that it is
    started from, instead of building another one with PyTorch in it. gRPC's fork
    handlers are off: with a call under way, as the simulation always has one, they
    crash some of the processes that Ray forks, and Ray then does not start.
    """
    http_port, control_port = free_ports(2)
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http_port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control_port),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        _MARK: uuid.uuid4().hex,
    }


def free_ports(count: int) -> list[int]:
    """Return ports on the loopback interface that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def flwr_run(arguments: list[str], environment: dict[str, str]) -> int:
    """Stream a run; return 0 only if Flower says that it completed."""
    flwr = str(Path(sys.executable).with_name("flwr"))
    status = subprocess.run(
        [flwr, "run", *arguments, "--stream"], env=environment, check=False
    ).returncode
    if status:
        explain_refusal(Path(environment["FLWR_HOME"]))
        return status
    listing = subprocess.run(
        [flwr, "list", "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return 0 if completed(listing.stdout) else 1


def explain_refusal(home: Path) -> None:
    """Print why the SuperLink did not start the run; ``flwr`` itself does not say."""
    log = home / "local-superlink" / "superlink.log"
    lines = log.read_text().splitlines() if log.exists() else []
    for line in lines:
        _, found, reason = line.partition("Could not start run: ")
        if found:
            print(
                f"{reason}: the keys stand under [tool.flwr.app.config] in the app's "
                "pyproject.toml",
                file=sys.stderr,
            )


def completed(listing: str) -> bool:
    """Return whether the only run of a SuperLink completed."""
    runs = json.loads(listing)["runs"]
    return all("completed" in run["status"] for run in runs)


def end_processes(mark: str) -> None:
    """End all processes whose environment bears the mark of this run."""
    marked = [process for process in psutil.process_iter() if has_mark(process, mark)]
    for process in marked:
        process.terminate()
    _, alive = psutil.wait_procs(marked, timeout=_PATIENCE)
    for process in alive:
        process.kill()


def has_mark(process: psutil.Process, mark: str) -> bool:
    """Return whether a process was started for this run."""
    try:
        return process.pid != os.getpid() and process.environ().get(_MARK) == mark
    except psutil.Error:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
