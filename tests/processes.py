"""Running Flower's own engine in a process, for end-to-end tests."""

import subprocess
import sys

# Once in a few dozen starts Ray's node does not come up within its half minute.
RAY_DID_NOT_START = "The current node timed out during startup"
ATTEMPTS = 3


def run_engine(arguments, cwd):
    """Run ``python ARGUMENTS``; again if Ray, and not the run, failed to start."""
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if RAY_DID_NOT_START not in done.stdout + done.stderr:
            break
    return done
