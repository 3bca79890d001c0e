"""What is tried on a fleet: that it trains, and that it keeps strangers out."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.edge.compose import Mount, Service
from scripts.edge.fleet import Fleet, TrialError, wait_until

__all__ = ["Outcome", "Plan", "plaintext", "stranger", "try_fleet"]

_CREDENTIALS = "/run/asyncdrop"
# What Flower's SuperNode prints.
_REFUSED = "Failed to activate SuperNode"
_NO_CONNECTION = "Connection attempt failed"
_CONNECTED = "SuperNode ID"
_REPLIED = "Sent successfully"


@dataclass(frozen=True)
class Plan:
    """How long a trial trains, and who plays which part.

    Attributes
    ----------
    num_rounds, in_flight : int
        Of the run; their product is the number of its updates.
    settings : mapping of str to object
        The rest of its run-config.
    stranger : Path
        Folder with a key that nobody has registered, and the fleet's authority.
    victim : str or None
        The device that is killed in the middle of the run, and started again; None
        spares them all.
    patience : float
        Seconds that each step may take.
    """

    num_rounds: int
    in_flight: int
    settings: Mapping[str, object]
    stranger: Path
    victim: str | None = "device-1"
    patience: float = 600.0


@dataclass(frozen=True)
class Outcome:
    """What a run on a fleet came to.

    Attributes
    ----------
    updates : int
        Updates that were merged.
    devices : int
        Devices that they came from.
    accuracy : float
        Test accuracy of the final model, in [0, 1].
    seconds : float
        From the command to its end.
    """

    updates: int
    devices: int
    accuracy: float
    seconds: float


def try_fleet(fleet: Fleet, plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Train on a fleet, with strangers at its door and a device that dies.

    Raises
    ------
    TrialError
        If something is not as it should be; says what.
    """
    devices = [each for each in fleet.services.values() if each.target == "device"]
    wait_until(
        lambda: fleet.online() == len(devices), "all devices online", plan.patience
    )
    say(f"{len(devices)} devices are online, with TLS and registered keys")
    fleet.add(stranger(devices[0], plan.stranger))
    fleet.add(plaintext(devices[0]))
    run = _Run(fleet, plan)
    try:
        _stays_out(fleet, "stranger", _REFUSED, plan.patience)
        say("a device whose key is not registered was refused")
        _stays_out(fleet, "plaintext", _NO_CONNECTION, plan.patience)
        say("a device without TLS got no connection")
        if plan.victim is not None:
            _dies_and_comes_back(fleet, plan.victim, run, say)
        outcome = run.outcome()
    finally:
        run.end()
    for name in ("stranger", "plaintext"):
        if _CONNECTED in fleet.log(name):
            raise TrialError(f"{name} got in: {fleet.log(name)}")
    if fleet.online() != len(devices):
        raise TrialError(f"{fleet.online()} of {len(devices)} devices are online")
    return outcome


def stranger(device: Service, credentials: Path) -> Service:
    """Return a device that encrypts, and has a key that nobody knows."""
    own = Mount(str(credentials), _CREDENTIALS)
    others = (mount for mount in device.mounts if mount.target != _CREDENTIALS)
    return replace(device, name="stranger", mounts=(own, *others))


def plaintext(device: Service) -> Service:
    """Return a device that does not encrypt, and shows no key."""
    environment = {**device.environment, "ASYNCDROP_INSECURE": "1"}
    return replace(device, name="plaintext", environment=environment)


def _stays_out(fleet: Fleet, name: str, message: str, patience: float) -> None:
    wait_until(lambda: message in fleet.log(name), f"{name}: {message!r}", patience)


def _dies_and_comes_back(
    fleet: Fleet, victim: str, run: "_Run", say: Callable[[str], None]
) -> None:
    run.wait(lambda: _REPLIED in fleet.log(victim), f"a reply of {victim}")
    fleet.kill(victim)
    killed_at = len(run.updates())
    say(f"{victim} was killed after {killed_at} updates")
    run.wait(lambda: len(run.updates()) > killed_at, f"updates without {victim}")
    before = len(fleet.log(victim))
    fleet.restart(victim)
    run.wait(
        lambda: _REPLIED in fleet.log(victim)[before:],
        f"a reply of {victim} after its restart",
    )
    say(f"{victim} was started again, and replied")


class _Run:
    """``flwr run``, and what it has written so far."""

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        self._fleet, self._plan = fleet, plan
        self._started = time.monotonic()
        config = {
            "clock": "wall",
            "num-rounds": plan.num_rounds,
            "in-flight": plan.in_flight,
            "out-dir": fleet.results,
            **plan.settings,
        }
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        self._process: subprocess.Popen[str] = fleet.flwr(
            "run", fleet.app, "edge", "--stream", "--run-config", pairs
        )

    def updates(self) -> list[dict[str, Any]]:
        """Return the updates that were merged so far."""
        return [line for line in self._history() if line["event"] == "update"]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds, unless the run ends before."""

        def holds() -> bool:
            if condition():
                return True
            if self._process.poll() is not None:
                raise TrialError(f"the run ended before {what}: {self._output()}")
            return False

        wait_until(holds, what, self._plan.patience)

    def outcome(self) -> Outcome:
        """Wait for the end of the run, and check what it has left.

        Raises
        ------
        TrialError
            If it is not what was asked for.
        """
        output = self._output()
        seconds = time.monotonic() - self._started
        updates = self.updates()
        wanted = self._plan.num_rounds * self._plan.in_flight
        statuses = {run["status"] for run in self._fleet.ask("list", "edge")["runs"]}
        if statuses != {"finished:completed"} or len(updates) != wanted:
            raise TrialError(
                f"{len(updates)} of {wanted} updates, {statuses}: {output}"
            )
        if "model.safetensors" not in output:
            raise TrialError(f"the run has not saved its model: {output}")
        accuracy = [
            line["metrics"]["accuracy"]
            for line in self._history()
            if line["event"] == "evaluation" and "accuracy" in line["metrics"]
        ][-1]
        devices = len({line["device"] for line in updates})
        return Outcome(len(updates), devices, accuracy, seconds)

    def end(self) -> None:
        """End the command, if it has not ended."""
        self._process.kill()
        self._process.wait()

    def _output(self) -> str:
        try:
            return self._process.communicate(timeout=self._plan.patience)[0]
        except subprocess.TimeoutExpired as error:
            raise TrialError("the run does not end") from error

    def _history(self) -> list[dict[str, Any]]:
        text = self._fleet.read(f"{self._fleet.results}/history.jsonl")
        # The last line may be half written.
        return [
            json.loads(line)
            for line in text.splitlines(keepends=True)
            if line.endswith("\n")
        ]
