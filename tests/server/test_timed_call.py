"""A call in a thread of its own, which whoever waits for it can leave."""

import math
import signal
import threading
import time

import pytest

from flwr_asyncdrop.server.timed_call import TimedCall


class StoppedError(Exception):
    """What the handler of this process raises."""


@pytest.fixture
def stops():
    def stop(signum, frame):
        raise StoppedError

    before = signal.signal(signal.SIGINT, stop)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_that_another_thread_has_got_ends_the_wait(stops):
    """As where Flower's ServerApp sees, in a thread, that its SuperLink has gone."""
    over = threading.Event()
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    started = time.monotonic()
    call = TimedCall(over.wait)
    timer.start()
    with pytest.raises(StoppedError):
        call.result(math.inf)
    assert time.monotonic() - started < 30
    over.set()
    timer.join()


def test_what_does_not_return_in_time_says_so():
    over = threading.Event()
    call = TimedCall(over.wait)
    with pytest.raises(TimeoutError, match=r"it has not returned for 0\.02 s"):
        call.result(0.02)
    assert call.is_under_way
    over.set()


def test_a_call_longer_than_a_slice_returns():
    assert TimedCall(lambda: time.sleep(0.6) or "done").result(math.inf) == "done"
