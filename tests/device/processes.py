"""Waiting for what other processes do."""

import time
from pathlib import Path

PATIENCE = 300.0


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def is_running(process_id):
    """Whether there is a process of this number that is not a zombie."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended just now
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
