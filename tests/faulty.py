"""A grid whose calls raise what Flower's grids raise."""

import importlib
import sqlite3
from collections import Counter

import grpc
import requests
from flwr.serverapp import Grid

from flwr_asyncdrop.flower_internals.grids import GRID_ERRORS

CALLS = "push_messages", "pull_messages", "get_node_ids"


class RpcError(grpc.RpcError):
    """As gRPC raises it for a call that has failed."""

    def __str__(self):
        return "StatusCode.UNAVAILABLE: failed to connect to all addresses"


def _flowers_own():
    utils = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
    (refused,) = set(GRID_ERRORS) - {Exception}
    parts = [
        ("ObjectPushError", ("object", 1, "session")),
        ("ObjectPullError", ("object", "timeout or retry limit reached")),
    ]
    known = [each for each in parts if hasattr(utils, each[0])]
    return [*(getattr(utils, name)(*said) for name, said in known), refused()]


def _of_httpx():
    try:
        httpx = importlib.import_module("httpx")
    except ModuleNotFoundError:  # Flower's transport is gRPC
        return []
    request = httpx.Request("POST", "http://127.0.0.1/v1/runtime/push-messages")
    refusals = [
        httpx.HTTPStatusError(
            f"status {code}", request=request, response=httpx.Response(code)
        )
        for code in (401, 403, 404, 413, 500, 502, 503)
    ]
    return [
        *refusals,
        httpx.ConnectError("connection refused"),
        httpx.ReadTimeout("timed out"),
        httpx.RemoteProtocolError("server disconnected"),
    ]


ERRORS = [
    *_flowers_own(),
    *_of_httpx(),
    RpcError(),
    requests.ConnectionError("refused"),
    requests.Timeout("timed out"),
    ConnectionResetError(104, "reset by peer"),
    TimeoutError("timed out"),
    OSError(28, "no space left on device"),
    sqlite3.OperationalError("database is locked"),
    ValueError("Invalid protobuf response payload"),
    RuntimeError("cannot schedule new futures after shutdown"),
    KeyError("message"),
    StopIteration(),
    Exception("anything"),
]
"""One of each kind that a call of a grid has been seen to raise, or may."""


class FaultyGrid(Grid):
    """Another grid, some calls of which raise.

    `faults(name, number)` says what call `number` of a kind raises, if anything; with
    `done` it has done its work by then.
    """

    answers_at_once = True

    def __init__(self, grid, faults=lambda name, number: None, *, done=False):
        self.grid = grid
        self.faults = faults
        self.done = done
        self.calls = Counter()

    def _call(self, name, *arguments):
        number = self.calls[name]
        self.calls[name] += 1
        error = self.faults(name, number)
        if error is not None and self.done:
            getattr(self.grid, name)(*arguments)
        if error is not None:
            raise error
        return getattr(self.grid, name)(*arguments)

    def push_messages(self, messages):
        return self._call("push_messages", messages)

    def pull_messages(self, message_ids):
        return self._call("pull_messages", message_ids)

    def get_node_ids(self):
        return self._call("get_node_ids")

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("an asynchronous server never waits for a round")

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError


def once(name, number, error):
    """One call raises."""
    return lambda *call: error if call == (name, number) else None


def from_then_on(name, number, error):
    """A call raises, and all calls of its kind that follow."""
    return lambda kind, at: error if kind == name and at >= number else None
