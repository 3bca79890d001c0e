"""What a terminal sends to all processes of a command."""

import signal


def leave_to_the_parent() -> None:
    """Ignore Ctrl-C, and that the terminal was closed: the process above decides."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
