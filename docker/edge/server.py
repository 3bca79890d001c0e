"""Starts the server: Flower's SuperLink, which runs the ServerApp in a subprocess.

It first writes the connection ``edge`` for the ``flwr`` command beside it, so that
``docker compose exec superlink flwr run /app edge`` works.
"""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from connect import write_connection
from settings import (
    GRPC,
    InvalidError,
    become,
    check_flower,
    credential,
    flag,
    health,
    port,
)

_FLEET, _CONTROL, _RUNTIME = 9092, 9093, 9091
_LOOPBACK = "127.0.0.1"
_GUARD = Path(__file__).with_name("guard.py")
_ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - of a container; its ports are published


def command(environment: Mapping[str, str]) -> list[str]:
    """Return the command that an environment asks for.

    Raises
    ------
    InvalidError
        If a variable is missing or wrong, by name, or Flower is of a wrong version.
    """
    check_flower()
    state = Path(environment.get("ASYNCDROP_STATE") or ".")
    # On HTTP the control API is behind a guard; on gRPC it has an address of its own.
    guard = [sys.executable, str(_GUARD), *control_hosts(environment), "--"]
    return [
        *(["flower-superlink"] if GRPC else guard),
        *identity(environment),
        *addresses(environment),
        *health(environment),
        # Registered devices outlive a restart.
        *("--database", str(state / "superlink.db")),
    ]


def identity(environment: Mapping[str, str]) -> list[str]:
    """Return how the server shows who it is, and whether devices have to."""
    if flag(environment, "ASYNCDROP_INSECURE"):
        return ["--insecure"]
    return [
        *("--ssl-ca-certfile", credential(environment, "ca.crt")),
        *("--ssl-certfile", credential(environment, "server.crt")),
        *("--ssl-keyfile", credential(environment, "server.key")),
        "--enable-supernode-auth",
    ]


def addresses(environment: Mapping[str, str]) -> list[str]:
    """Return where devices, operators and the ServerApp find the SuperLink.

    With gRPC the ServerApp's address, which has no TLS, stays on the loopback
    interface. With HTTP there is one address for all.
    """
    fleet = port(environment, "ASYNCDROP_PORT", _FLEET)
    if not GRPC:
        return ["--host", _ALL_INTERFACES, "--port", str(fleet)]
    runtime = port(environment, "ASYNCDROP_RUNTIME_PORT", _RUNTIME)
    return [
        *("--fleet-api-address", f"{_ALL_INTERFACES}:{fleet}"),
        *("--control-api-address", control_address(environment)),
        *("--serverappio-api-address", f"127.0.0.1:{runtime}"),
    ]


def control_hosts(environment: Mapping[str, str]) -> list[str]:
    """Return the addresses of this machine at which there is a control API.

    They are those of the host that the environment names, by default the loopback
    interface. A container with two networks has a name on each.
    """
    host = environment.get("ASYNCDROP_CONTROL_HOST") or _LOOPBACK
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidError(
            f"ASYNCDROP_CONTROL_HOST={host!r} is no host of this machine: {error}"
        ) from error
    return sorted({str(address[0]) for *_, address in found})


def control_address(environment: Mapping[str, str]) -> str:
    """Return where operators find the control API, and this container's ``flwr``."""
    return f"{control_hosts(environment)[0]}:{control(environment)}"


def connection_address(environment: Mapping[str, str]) -> str:
    """Return the control API's address as the server's certificate has it."""
    host = environment.get("ASYNCDROP_CONTROL_HOST") or _LOOPBACK
    return f"{host}:{control(environment)}"


def control(environment: Mapping[str, str]) -> int:
    """Return the port that takes runs and registrations."""
    if GRPC:
        return port(environment, "ASYNCDROP_CONTROL_PORT", _CONTROL)
    return port(environment, "ASYNCDROP_PORT", _FLEET)


def main() -> None:
    """Become the SuperLink."""
    try:
        found = command(os.environ)
        insecure = flag(os.environ, "ASYNCDROP_INSECURE")
        authority = None if insecure else credential(os.environ, "ca.crt")
        write_connection("edge", connection_address(os.environ), authority)
    except (ValueError, OSError) as error:
        sys.exit(f"server: {error}")
    become("server", found)


if __name__ == "__main__":
    main()
