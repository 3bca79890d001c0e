"""The head of a Ray cluster is there, silent, or gone."""

import socket
from types import SimpleNamespace

import pytest

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.simulation.ray.head import Head


class Seconds:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server):
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_head_that_is_gone_ends_the_run_after_a_quarter_minute(listener):
    timer, where = Seconds(), address(listener)
    head = Head(where, timer)
    head.look()
    assert not head.is_silent
    listener.close()
    timer.now = 1.9
    head.look()
    assert not head.is_silent  # not looked at again yet
    timer.now = 2.0
    head.look()
    assert head.is_silent
    timer.now = 16.9
    head.look()
    timer.now = 19.0
    with pytest.raises(RunError, match=rf"at {where} is gone \(.*refused\): start a"):
        head.look()


def test_one_that_was_silent_for_a_while_is_there_again(listener):
    timer, where = Seconds(), address(listener)
    port = listener.getsockname()[1]
    head = Head(where, timer)
    listener.close()
    head.look(at_once=True)
    assert head.is_silent
    with socket.create_server(("127.0.0.1", port)):
        timer.now = 14.0
        head.look()
        assert not head.is_silent
    timer.now = 20.0
    head.look()
    assert head.is_silent  # from here on anew
    timer.now = 30.0
    head.look()


def test_a_ray_that_names_no_head_is_left_alone():
    ray = SimpleNamespace(get_runtime_context=SimpleNamespace)
    head = Head.of(ray)
    head.look(at_once=True)
    assert not head.is_silent
