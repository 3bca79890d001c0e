"""Tries a fleet of ``docker/compose.edge*.yml`` for real: ``make edge-test``.

With podman it builds the project's images and starts the compose file in containers;
without, it starts the same commands as processes. The fleet has TLS and registered
keys. It trains to the end while one of its devices is killed and started again. A
device with an unknown key is refused, and one without TLS gets no connection.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from scripts.edge.containers import ContainerFleet, containers_run
from scripts.edge.fleet import Fleet, TrialError
from scripts.edge.local import ROOT
from scripts.edge.processes import ProcessFleet
from scripts.edge.trial import Outcome, Plan, try_fleet
from scripts.flwr_run import end_with_signals, folder
from scripts.transport import installed_transport

_FILES = {"grpc": "compose.edge.yml", "http": "compose.edge-http.yml"}
_DEVICES = ("device-0", "device-1", "device-2", "device-3", "device-4")
_STRANGER = "stranger"
_DATA = "FashionMNIST"


def main() -> int:
    """Try what the arguments name; return the exit status."""
    arguments = _parser().parse_args()
    manner = arguments.manner
    transport = arguments.transport or installed_transport()
    if manner == "auto":
        manner = "containers" if containers_run() else "processes"
    if manner == "processes" and transport != installed_transport():
        say(f"Flower {version('flwr')} does not talk {transport}: try another one")
        return 2
    if (missing := missing_data(arguments.data)) is not None:
        say(missing)
        return 2
    end_with_signals()
    try:
        with tempfile.TemporaryDirectory(prefix="edge-test-", dir=folder()) as home:
            outcome = attempt(transport, manner, Path(home), arguments)
    except TrialError as error:
        say(f"FAILED: {error}")
        return 1
    say(
        f"{transport}, in {manner}: {outcome.updates} updates of {outcome.devices} "
        f"devices merged in {outcome.seconds:.0f} s, accuracy {outcome.accuracy:.1%}"
    )
    return 0


def attempt(
    transport: str, manner: str, home: Path, arguments: argparse.Namespace
) -> Outcome:
    """Try one compose file."""
    certificates = home / "certificates"
    make_certificates(certificates)
    data = arguments.data or home / "no-data"
    variables = {"EDGE_CERTIFICATES": str(certificates), "EDGE_DATA": str(data)}
    compose = ROOT / "docker" / _FILES[transport]
    without = _DEVICES[arguments.devices :]
    fleet: Fleet
    if manner == "containers":
        fleet = ContainerFleet(compose, variables, without, arguments.keep_images)
    else:
        fleet = ProcessFleet(compose, home, variables, without)
    plan = Plan(
        num_rounds=arguments.rounds,
        in_flight=arguments.devices - 1,
        settings=settings(arguments.data, fleet.data),
        stranger=certificates / "devices" / _STRANGER,
    )
    with fleet:
        return try_fleet(fleet, plan, lambda what: say(f"{transport}: {what}"))


def make_certificates(folder: Path, devices: tuple[str, ...] = _DEVICES) -> None:
    """Make all credentials, and a key that is not to be registered."""
    subprocess.run(
        [ROOT / "docker" / "make_certificates.sh", *devices, _STRANGER],
        env={**os.environ, "EDGE_CERTIFICATES": str(folder)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (folder / "public" / f"{_STRANGER}.pub").unlink()


def missing_data(folder: Path | None) -> str | None:
    """Return what is wrong with the folder of the data sets, if one is named."""
    if folder is None or (folder / _DATA).is_dir():
        return None
    return (
        f"there is no folder {_DATA} in {folder}, which --data or ASYNCDROP_TEST_DATA "
        "names; without either the digits are trained"
    )


def settings(data: Path | None, folder: str) -> dict[str, object]:
    """Return what is trained: Fashion-MNIST if its folder is named, else the digits."""
    common: dict[str, object] = {"model": "mlp", "partition": "iid"}
    if data is None:
        return common
    return {**common, "dataset": "fashion-mnist", "data-dir": folder}


def say(what: str) -> None:
    """Tell people what has been seen."""
    print(f"edge-test: {what}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="edge-test", description=__doc__)
    parser.add_argument(
        "--as",
        dest="manner",
        choices=("auto", "containers", "processes"),
        default="auto",
        help="containers where podman runs them, else processes (%(default)s)",
    )
    parser.add_argument(
        "--transport",
        choices=tuple(_FILES),
        help="else that of the installed Flower, which processes can only have",
    )
    parser.add_argument("--rounds", type=int, default=6, help="(%(default)s)")
    parser.add_argument(
        "--devices", type=int, choices=range(2, 6), default=5, help="(%(default)s)"
    )
    parser.add_argument(
        "--data",
        # A relative path would be a volume's name, or below the compose file's folder.
        type=lambda text: Path(text).absolute(),
        default=os.environ.get("ASYNCDROP_TEST_DATA") or None,
        help=f"folder that {_DATA} is in ($ASYNCDROP_TEST_DATA), else the digits",
    )
    parser.add_argument("--keep-images", action="store_true", help="for the next time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
