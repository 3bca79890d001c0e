import threading

import pytest


@pytest.fixture
def waits(monkeypatch):
    """The seconds for which an event is waited for in this test; they pass at once."""
    seconds = []
    wait = threading.Event.wait

    def noted(event, timeout=None):
        if timeout is None:
            return wait(event)
        seconds.append(timeout)
        return wait(event, 0)

    monkeypatch.setattr(threading.Event, "wait", noted)
    return seconds
