"""Running Flower's own engine in a process, for end-to-end tests."""

import subprocess
import sys

import pytest

from flwr_asyncdrop.doctor.superlink import check_installation, check_ray

# Ray gives its own processes half a minute to come up, which a busy machine may exceed.
RAY_DID_NOT_START = ("The current node timed out during startup", "gcs_server_port_")
ATTEMPTS = 3

superlink_starts = pytest.mark.skipif(
    check_installation().level != "ok",
    reason="Flower's SuperLink does not start from this path: see `asyncdrop doctor`",
)
ray_starts = pytest.mark.skipif(
    check_ray({}).level != "ok",
    reason="Ray does not start from this path: see `asyncdrop doctor`",
)


def run_engine(arguments, cwd, python=sys.executable):
    """Run ``python ARGUMENTS``; again if Ray, and not the run, failed to start."""
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            [python, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        output = done.stdout + done.stderr
        if not any(message in output for message in RAY_DID_NOT_START):
            break
    return done
