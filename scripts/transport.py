"""What the APIs of the installed Flower talk: gRPC, or HTTP."""

import sys
from importlib.metadata import version
from typing import Literal

__all__ = ["installed_transport"]

# Up to 1.34 every API has a gRPC port of its own; from 1.40 on there is one HTTP port.
_SOME_HTTP, _ALL_HTTP = (1, 35), (1, 40)


def installed_transport() -> Literal["grpc", "http"]:
    """Return what the Flower of this environment talks.

    The program ends, with one line, where some APIs talk the one and some the other.
    """
    number = tuple(int(part) for part in version("flwr").split(".")[:2])
    if _SOME_HTTP <= number < _ALL_HTTP:
        sys.exit(
            f"flwr {version('flwr')} has some APIs over gRPC and some over HTTP: "
            "install flwr 1.34, or 1.40 or newer"
        )
    return "grpc" if number < _SOME_HTTP else "http"
