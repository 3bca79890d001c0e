"""Registers the devices' public keys with the SuperLink, and ends.

A SuperLink with authentication lets in only the devices whose keys it knows. Keys
that it knows already are left alone, so this may run at every start.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from connect import write_connection
from settings import InvalidError, credential, required

_KNOWN = "already in use"
_PATIENCE = 120.0
_PAUSE = 1.0


def register(key: Path) -> str:
    """Register a device, and return what came of it.

    Raises
    ------
    InvalidError
        If the SuperLink refuses the key for another reason than that it has it.
    """
    done = flwr("supernode", "register", str(key), "edge")
    if done.returncode == 0:
        return "registered"
    if _KNOWN in done.stdout + done.stderr:
        return "was registered before"
    raise InvalidError(f"{key.name}: {(done.stdout + done.stderr).strip()}")


def wait_for_superlink() -> None:
    """Wait until the SuperLink answers.

    Raises
    ------
    InvalidError
        If it does not, in two minutes.
    """
    deadline = time.monotonic() + _PATIENCE
    while (done := flwr("supernode", "list", "edge")).returncode:
        if time.monotonic() > deadline:
            raise InvalidError(f"no answer: {(done.stdout + done.stderr).strip()}")
        time.sleep(_PAUSE)


def flwr(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Flower's command and return what it printed."""
    return subprocess.run(
        ["flwr", *arguments], capture_output=True, text=True, check=False
    )


def public_keys(environment: Mapping[str, str]) -> Sequence[Path]:
    """Return the keys in the folder that the environment names."""
    folder = Path(environment.get("ASYNCDROP_PUBLIC_KEYS") or "/run/public")
    keys = sorted(folder.glob("*.pub"))
    if not keys:
        raise InvalidError(
            f"no *.pub in {folder}: docker/make_certificates.sh makes them"
        )
    return keys


def register_all(keys: Sequence[Path]) -> None:
    """Register devices: one that is refused keeps no other out.

    Raises
    ------
    InvalidError
        If any was refused, after the others.
    """
    refused = []
    for key in keys:
        try:
            print(f"register: {key.stem} {register(key)}", flush=True)
        except InvalidError as error:
            refused.append(str(error))
    if refused:
        raise InvalidError("\n".join(refused))


def main() -> None:
    """Register all keys."""
    try:
        keys = public_keys(os.environ)
        write_connection(
            "edge", required(os.environ, "SUPERLINK"), credential(os.environ, "ca.crt")
        )
        wait_for_superlink()
        register_all(keys)
    except (ValueError, OSError) as error:
        sys.exit(f"register: {error}")


if __name__ == "__main__":
    main()
