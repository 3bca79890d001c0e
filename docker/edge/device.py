"""Starts a device: Flower's SuperNode, as the environment describes it.

The container of a device runs this, and so does the systemd unit of a device without
containers. ``docs/edge.md`` lists the variables.
"""

import os
import sys
from collections.abc import Mapping

from settings import (
    GRPC,
    InvalidError,
    become,
    check_flower,
    credential,
    flag,
    health,
    port,
    positive,
    required,
    whole,
)


def command(environment: Mapping[str, str]) -> list[str]:
    """Return the command that an environment asks for.

    Raises
    ------
    InvalidError
        If a variable is missing or wrong, by name, or Flower is of a wrong version.
    """
    check_flower()
    arguments = [
        *("--superlink", required(environment, "SUPERLINK")),
        *identity(environment),
        *own_address(environment),
        *health(environment),
    ]
    if config := node_config(environment):
        arguments += ["--node-config", config]
    return [*program(environment), *arguments]


def program(environment: Mapping[str, str]) -> list[str]:
    """Return Flower's SuperNode, or ours with its own flags."""
    warm = flag(environment, "ASYNCDROP_WARM")
    max_poll = positive(environment, "ASYNCDROP_MAX_POLL")
    if not warm and max_poll is None:
        return ["flower-supernode"]
    # `asyncdrop supernode` itself needs Matplotlib, which a device has no use for.
    own = [sys.executable, "-m", "flwr_asyncdrop.device"]
    if not warm:
        own.append("--no-warm")
    if max_poll is not None:
        own += ["--max-poll", f"{max_poll:g}"]
    return own


def identity(environment: Mapping[str, str]) -> list[str]:
    """Return whom the device trusts, and how it shows who it is."""
    if flag(environment, "ASYNCDROP_INSECURE"):
        return ["--insecure"]
    return [
        *("--root-certificates", credential(environment, "ca.crt")),
        *("--auth-supernode-private-key", credential(environment, "key")),
    ]


def own_address(environment: Mapping[str, str]) -> list[str]:
    """Return where the SuperNode meets its ClientApp: never on the network."""
    number = port(environment, "ASYNCDROP_PORT", 9094)
    if GRPC:
        return ["--clientappio-api-address", f"127.0.0.1:{number}"]
    return ["--host", "127.0.0.1", "--port", str(number)]


def node_config(environment: Mapping[str, str]) -> str:
    """Return what the app is told of the device: only what is set."""
    share = whole(environment, "PARTITION_ID", 0)
    shares = whole(environment, "NUM_PARTITIONS", 1)
    if share is not None and shares is not None and share >= shares:
        raise InvalidError(
            f"PARTITION_ID='{share}' must be below NUM_PARTITIONS='{shares}': shares "
            "are counted from 0"
        )
    values = {
        "partition-id": share,
        "num-partitions": shares,
        "capacity": positive(environment, "ASYNCDROP_CAPACITY"),
        "memory-mb": whole(environment, "ASYNCDROP_MEMORY_MB", 1),
        "bandwidth-mbps": positive(environment, "ASYNCDROP_BANDWIDTH_MBPS"),
        "data-dir": quoted(environment, "ASYNCDROP_DATA"),
        "device-id": quoted(environment, "ASYNCDROP_DEVICE_ID"),
    }
    return " ".join(
        f"{key}={value}" for key, value in values.items() if value is not None
    )


def quoted(environment: Mapping[str, str], name: str) -> str | None:
    """Return a variable as a TOML string, as Flower reads it."""
    value = environment.get(name, "")
    if set(value) & set("'\r\n"):
        raise InvalidError(f"{name}={value!r} must not contain ' or a line break")
    return f"'{value}'" if value else None


def main() -> None:
    """Become the SuperNode."""
    try:
        found = command(os.environ)
    except InvalidError as error:
        sys.exit(f"device: {error}")
    become("device", found)


if __name__ == "__main__":
    main()
