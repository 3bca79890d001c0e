"""A signal stops the run between two events, and then does what it always does."""

import signal
import threading
import time

import pytest

from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.server.signals import Signals


class StoppedError(Exception):
    """What the handler of this process raises."""


def stop(signum, _):
    raise StoppedError(signum)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def signum(request):
    before = signal.signal(request.param, stop)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_waits_for_the_check_and_is_passed_on_at_the_end(signum):
    done = []

    def work():
        with Signals() as signals:
            signal.raise_signal(signum)
            done.append("what was under way")
            with pytest.raises(Interrupted, match=signal.Signals(signum).name):
                signals.check()
            done.append("saved")

    with pytest.raises(StoppedError):
        work()
    assert done == ["what was under way", "saved"]
    assert signal.getsignal(signum) is stop


def test_one_that_nobody_checked_is_passed_on_too(signum):
    with pytest.raises(StoppedError), Signals():
        signal.raise_signal(signum)


def test_a_second_signal_is_not_kept_back(signum):
    with Signals():
        signal.raise_signal(signum)
        with pytest.raises(StoppedError):
            signal.raise_signal(signum)
        # The first one, at the end, is for this test alone.
        signal.signal(signum, signal.SIG_IGN)


def test_without_a_signal_nothing_happens(signum):
    with Signals() as signals:
        signals.check()
        assert signal.getsignal(signum) is not stop
    assert signal.getsignal(signum) is stop


def test_a_signal_that_the_process_ignores_stays_ignored(signum):
    signal.signal(signum, signal.SIG_IGN)
    with Signals() as signals:
        signal.raise_signal(signum)
        signals.check()
    assert signal.getsignal(signum) is signal.SIG_IGN


def test_in_a_thread_handlers_are_left_alone(signum):
    seen = []

    def work():
        with Signals() as signals:
            seen.append(signal.getsignal(signum))
            signals.check()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [stop]


@pytest.fixture
def end(monkeypatch):
    """What Flower does when it is about to end this process."""
    handlers = []
    monkeypatch.setattr(
        "flwr_asyncdrop.server.signals.before_exit",
        lambda handler: handlers.append(handler) or 60.0,
    )
    return lambda: [handler() for handler in handlers]


def test_in_a_thread_the_end_of_the_process_waits_until_the_run_has_stopped(end):
    done, begun = [], threading.Event()

    def work():
        with Signals() as signals:
            begun.set()
            try:
                while True:
                    signals.sleep(0.01)
            except Interrupted:
                time.sleep(0.2)
                done.append("saved")
                raise

    def end_quietly():
        # A thread that ends so says nothing.
        with pytest.raises(SystemExit):
            work()

    thread = threading.Thread(target=end_quietly)
    thread.start()
    assert begun.wait(60)
    end()
    assert done == ["saved"]
    thread.join(60)


def test_after_the_run_the_end_of_the_process_waits_for_nothing(end):
    def work():
        with Signals() as signals:
            signals.check()
        done.append("went on")

    done = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    end()
    assert done == ["went on"]


def test_in_the_main_thread_flower_is_not_asked(end):
    with Signals() as signals:
        end()
        signals.check()


def test_a_pause_ends_with_the_signal(signum):
    timer = threading.Timer(0.05, signal.raise_signal, [signum])
    deadline = time.monotonic() + 60

    def sleep():
        with Signals() as signals:
            timer.start()
            while time.monotonic() < deadline:
                signals.sleep(0.01)

    with pytest.raises(StoppedError) as caught:
        sleep()
    timer.join()
    assert isinstance(caught.value.__context__, Interrupted)


def test_a_call_that_never_returns_is_left_at_once(signum):
    main = threading.get_ident()
    timer = threading.Timer(0.05, signal.pthread_kill, [main, signum])

    def wait():
        with Signals() as signals:
            timer.start()
            with signals.at_once():
                time.sleep(60)

    started = time.monotonic()
    with pytest.raises(StoppedError) as caught:
        wait()
    timer.join()
    assert isinstance(caught.value.__context__, Interrupted)
    assert time.monotonic() - started < 30


def test_no_such_call_is_begun_after_a_signal(signum):
    def begin():
        with Signals() as signals:
            signal.raise_signal(signum)
            with signals.at_once():
                pytest.fail("it began")

    with pytest.raises(StoppedError):
        begin()


def test_after_such_a_call_signals_wait_again(signum):
    done = []

    def work():
        with Signals() as signals:
            with signals.at_once():
                pass
            signal.raise_signal(signum)
            done.append("what was under way")
            signals.check()

    with pytest.raises(StoppedError):
        work()
    assert done == ["what was under way"]
