"""Flower's own grids are recognised, copied from, and never changed."""

import importlib
import sys
from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict

from flwr_asyncdrop.flower_internals import grids
from flwr_asyncdrop.flower_internals.grids import answers_at_once, pull_function
from flwr_asyncdrop.flower_internals.identity import Run
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.simulation import LocalGrid
from tests.flower_internals.clocks import SHORTER_WAITS
from tests.grids import HandlerGrid, echo


def remote_grid():
    """Flower's grid for deployments: gRPC up to 1.34, HTTP from 1.35 on."""
    for module, name in (("http_grid", "HttpGrid"), ("grpc_grid", "GrpcGrid")):
        try:
            found = importlib.import_module(f"flwr.superlink.grid.{module}")
        except ModuleNotFoundError:
            continue
        return getattr(found, name)
    raise AssertionError("this Flower has no grid for deployments")


FLOWERS = remote_grid()
IN_MEMORY = importlib.import_module("flwr.superlink.grid.inmemory_grid").InMemoryGrid


class UsersGrid(FLOWERS):
    """A user's, in a module of the user's that pulls as well."""


def pull_objects(object_ids, pull_object_fn, *, initial_backoff=1.0):
    raise AssertionError("nobody calls what the user's module has imported")


class OverridingGrid(FLOWERS):
    """A user's that pulls in another way."""

    def pull_messages(self, message_ids):
        return []


class LateParts:
    """A SuperLink that has a reply, whose parts are gone at the third look."""

    def __init__(self):
        self.looks = 0

    def PullMessages(self, request):  # noqa: N802  # Flower's name
        proto = importlib.import_module("flwr.proto.message_pb2")
        reply = proto.Message()
        reply.metadata.message_id = "reply"
        reply.metadata.reply_to_message_id = "sent"
        trees = [proto.ObjectTree(object_id="part")]
        replies = [reply] if "sent" in request.message_ids else []
        return SimpleNamespace(
            messages_list=replies, message_object_trees=trees[: len(replies)]
        )

    def PullObject(self, request):  # noqa: N802  # Flower's name
        self.looks += 1
        there = SimpleNamespace(object_found=True, object_available=False)
        gone = SimpleNamespace(object_found=False, object_available=False)
        return gone if self.looks > 2 else there


@pytest.fixture
def link():
    return LateParts()


@pytest.fixture(params=[FLOWERS, UsersGrid])
def grid(request, link):
    """A grid of Flower's, or a user's that inherits how it pulls."""
    grid = request.param.__new__(request.param)
    grid.node = importlib.import_module("flwr.proto.node_pb2").Node(node_id=1)
    grid._run = Run.create_empty(1)
    grid._client = grid._grpc_stub = grid._channel = link
    return grid


def snapshot(*owners):
    return [dict(vars(owner)) for owner in owners]


def test_a_mailbox_looks_sooner_and_changes_no_grid_no_class_and_no_module(
    grid, link, waits
):
    modules = [importlib.import_module(kind.__module__) for kind in type(grid).__mro__]
    owners = [grid, *type(grid).__mro__[:-1], *modules]
    before = snapshot(*owners)
    reply = Mailbox(grid).wait(["sent"], timeout=60)
    assert reply.has_error()  # as its parts are gone
    assert link.looks == 3
    assert waits == SHORTER_WAITS
    assert snapshot(*owners) == before


def test_the_pulls_go_through_a_copy_of_flowers_own_method(grid):
    pull = pull_function(grid)
    assert pull.__self__ is grid
    assert pull.__func__.__code__ is FLOWERS.pull_messages.__code__
    assert pull.__func__ is not FLOWERS.pull_messages
    assert list(pull([])) == []


@pytest.mark.parametrize("kind", [HandlerGrid, OverridingGrid, IN_MEMORY, LocalGrid])
def test_a_grid_that_answers_at_once_or_in_its_own_way_is_asked_directly(kind):
    assert pull_function(kind.__new__(kind)) is None


@pytest.mark.parametrize(
    ("kind", "at_once"),
    [
        (FLOWERS, False),
        (UsersGrid, False),
        (OverridingGrid, False),
        (IN_MEMORY, True),
        (LocalGrid, True),
        (HandlerGrid, True),
    ],
)
def test_who_answers_at_once(kind, at_once):
    assert answers_at_once(kind.__new__(kind)) == at_once


def test_what_replaces_a_grids_method_counts():
    grid = FLOWERS.__new__(FLOWERS)
    grid.pull_messages = lambda message_ids: []
    assert pull_function(grid) is None
    sent = Message(RecordDict(), 1, "train")
    sent.metadata.__dict__["_message_id"] = "sent"
    grid.pull_messages = lambda message_ids: [echo(sent)]
    assert Mailbox(grid).wait(["sent"], timeout=60) is not None


def test_a_flower_without_that_refusal_has_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.supercore.run", None)
    assert grids.refusals() == ()
