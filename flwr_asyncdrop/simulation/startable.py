"""Whether worker processes can be started from here, and can import the ClientApp."""

import multiprocessing
import sys
from pathlib import Path
from typing import Final

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.simulation.client_app import ClientAppSource

MAIN: Final = "__main__"


def check_startable(client_app: ClientAppSource) -> None:
    """Raise ConfigError unless workers can be started for this ClientApp."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise ConfigError(
            "LocalGrid cannot start worker processes on this system, which has no "
            "fork server; use workers=0."
        )
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            "LocalGrid cannot start worker processes in this process, a daemon of "
            "multiprocessing (a worker of a Pool?); use workers=0."
        )
    if module_of(client_app) == MAIN and not _main_can_be_imported():
        raise ConfigError(
            "LocalGrid's workers cannot import a ClientApp from a notebook or a "
            "prompt; write it to a file and give module:attribute, or use workers=0."
        )


def module_of(client_app: ClientAppSource) -> str:
    """Return the name of the module that a ClientApp, or a function for it, lies in."""
    if isinstance(client_app, str):
        return client_app.partition(":")[0]
    return str(getattr(client_app, "__module__", ""))


def _main_can_be_imported() -> bool:
    main = sys.modules[MAIN]
    if getattr(main, "__spec__", None) is not None:  # python -m
        return True
    return Path(getattr(main, "__file__", None) or ".").is_file()
