"""``flwr run --stream`` that leaves no process behind.

Flower starts a local SuperLink and leaves it running for the next run. This gives the
run a SuperLink of its own, on free ports and with a home of its own, and ends it
afterwards, also when it is itself ended by Ctrl-C, SIGTERM or SIGHUP. All arguments go
to ``flwr run``; the exit status is that of the run. Of a run that fails the SuperLink's
log is kept, and the last line says why it failed.

Flower up to 1.42 does not start from a path with a space or comma in it: Alembic, which
makes its database, takes these for the end of the path, and a percent sign for a
variable. Where Flower lies in such a path, the run gets a copy of its code elsewhere.
Nor does Ray start workers with a Python in such a path, unless it is in quotes.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from flwr_asyncdrop.device.programs import program_path
from flwr_asyncdrop.flower_internals import ray_workers

_MARK = "ASYNCDROP_RUN"
_PATIENCE = 10
_MOMENT = 0.1
_UNREADABLE = re.compile(r"[ ,%]")
_OTHERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # if TMPDIR is unreadable, too
_LOOPBACK = "127.0.0.1"
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DETAILS = re.compile(r"^\w+ failed with exception: ")


def main(arguments: list[str]) -> int:
    """Run ``flwr run`` and end every process that it started."""
    with tempfile.TemporaryDirectory(prefix="flwr-home-", dir=folder()) as home:
        environment = run_environment(Path(home))
        try:
            status, reason = flwr_run(arguments, environment)
        finally:
            end_processes(environment[_MARK])
        if status:
            report_failure(Path(home), reason)
        return status


def end_with_signals() -> None:
    """Let signals unwind the stack, so that all processes are ended."""
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    for each in _ENDINGS:
        signal.signal(each, signal.SIG_IGN)  # tidying is under way
    sys.exit(128 + number)


def folder() -> str | None:
    """Return a temporary folder that Alembic can read; None for the usual one."""
    if not _UNREADABLE.search(tempfile.gettempdir()):
        return None
    usable = (name for name in _OTHERS if os.access(name, os.W_OK))
    return next(usable, None)


def python_path(home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make Python find Flower's code where Alembic can read it.

    Empty if it can where Flower is installed, else with a copy in `home` before what
    `environment` names. Symbolic links would not do, as Flower resolves them.
    """
    spec = find_spec("flwr")
    if spec is None or spec.origin is None:
        raise SystemExit("flwr is not installed: make setup")
    installed = Path(spec.origin).resolve().parent
    if not _UNREADABLE.search(str(installed)):
        return {}
    if _UNREADABLE.search(str(home)):
        raise SystemExit(
            f"Flower does not start from {installed}, as Alembic cannot read a path "
            "with a space, comma or %: set TMPDIR to a folder without, for a copy of "
            "its code"
        )
    copies = home / "python"
    shutil.copytree(installed, copies / "flwr")
    others = environment.get("PYTHONPATH")
    return {"PYTHONPATH": f"{copies}{os.pathsep}{others}" if others else str(copies)}


def ray_hook() -> dict[str, str]:
    """Return the variable with which Ray starts this Python, if it needs that.

    A hook that the user has set stays.
    """
    needed = ray_workers.needs_quotes(sys.executable)
    if not needed or os.environ.get(ray_workers.VARIABLE):
        return {}
    return {ray_workers.VARIABLE: ray_workers.HOOK}


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
        **python_path(home, os.environ),
        **ray_hook(),
        _MARK: uuid.uuid4().hex,
    }


def free_ports(count: int) -> list[int]:
    """Return ports on the loopback interface that nobody listens on.

    No other caller gets them while this process lives, whatever its process: UDP's
    ports of these numbers, which nobody else needs, say that they are taken.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _free_port()
        with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as claim:
            claim.bind((_LOOPBACK, port))
            claim.detach()  # open until the process ends
            ports.append(port)
    return ports


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def flwr_run(
    arguments: list[str], environment: dict[str, str]
) -> tuple[int, str | None]:
    """Stream a run; return 0 only if Flower says that it completed, else why not."""
    flwr = program_path("flwr")
    if flwr is None:
        raise SystemExit("there is no program flwr: pip install flwr")
    status = subprocess.run(
        [flwr, "run", *arguments, "--stream"], env=environment, check=False
    ).returncode
    if status:
        return status, refusal(superlink_log(Path(environment["FLWR_HOME"])))
    listing = subprocess.run(
        [flwr, "list", "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    failures = failed_runs(listing.stdout)
    return (1, failures[-1]) if failures else (0, None)


def superlink_log(home: Path) -> Path:
    """Return where a local SuperLink with this home writes its log."""
    return home / "local-superlink" / "superlink.log"


def refusal(log: Path) -> str | None:
    """Return why the SuperLink did not start the run; ``flwr`` itself does not say."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for line in lines:
        _, found, reason = line.partition("Could not start run: ")
        if found:
            return (
                f"{reason}: the keys stand under [tool.flwr.app.config] in the app's "
                "pyproject.toml"
            )
    return None


def failed_runs(listing: str) -> list[str]:
    """Return why runs of a SuperLink have not completed; none if all have."""
    try:
        runs = json.loads(listing)["runs"]
    except (ValueError, KeyError):
        return ["the SuperLink does not say how the run ended"]
    return [
        _DETAILS.sub("", run.get("status-details") or f"the run is {run['status']}")
        for run in runs
        if "completed" not in run["status"]
    ]


def report_failure(home: Path, reason: str | None) -> None:
    """Keep the SuperLink's log and say where, then why the run failed."""
    log = superlink_log(home)
    if log.exists():
        number, kept = tempfile.mkstemp(prefix="superlink-", suffix=".log")
        os.close(number)
        shutil.copyfile(log, kept)
        print(f"the SuperLink's log is kept in {kept}", file=sys.stderr)
    print(reason or "flwr run failed: see above", file=sys.stderr)


def end_processes(mark: str) -> None:
    """End all processes whose environment bears the mark of this run.

    A process may start another one while it is ended: the last look finds nobody.
    """
    while marked := marked_processes(mark):
        for process in marked:
            # It may end by itself meanwhile, as SIGTERM to its parent makes it.
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(marked, timeout=_PATIENCE)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the processes that were started for this run."""
    time.sleep(_MOMENT)  # one that was started just now has no environment yet
    return [each for each in psutil.process_iter() if has_mark(each, mark)]


def has_mark(process: psutil.Process, mark: str) -> bool:
    """Return whether a process was started for this run."""
    try:
        return process.pid != os.getpid() and process.environ().get(_MARK) == mark
    except psutil.Error:
        return False


if __name__ == "__main__":
    end_with_signals()
    sys.exit(main(sys.argv[1:]))
