import importlib
import sys
import time
from types import ModuleType

import pytest

from flwr_asyncdrop.flower_internals.pulls import pull_sooner
from flwr_asyncdrop.server.mailbox import Mailbox
from tests.grids import HandlerGrid


def flowers(module_name):
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError:
        return None


@pytest.fixture
def module():
    """A module that has imported Flower's own function."""
    utils = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
    module = ModuleType("puller")
    module.pull_objects = utils.pull_objects
    module.unavailable = next(
        each for name, each in vars(utils).items() if name == "ObjectUnavailableError"
    )
    return module


def test_parts_that_come_later_are_looked_for_sooner(module):
    assert pull_sooner(module)
    looks = []

    def pull(object_id):
        looks.append(time.monotonic())
        if len(looks) < 3:
            raise module.unavailable("not yet")
        return b"part"

    assert module.pull_objects(["a"], pull) == {"a": b"part"}
    # Flower's own first two waits are 1 and 2 s; ours 0.03 and 0.06, each +- 20 %.
    assert 0.07 < looks[2] - looks[0] < 0.7


def test_twice_is_once(module):
    pull_sooner(module)
    once = module.pull_objects
    assert pull_sooner(module)
    assert module.pull_objects is once


def test_a_module_that_does_not_pull_or_otherwise_is_left_alone():
    module = ModuleType("other")
    assert not pull_sooner(module)
    module.pull_objects = pull = lambda object_ids: {}
    assert not pull_sooner(module)
    assert module.pull_objects is pull


def test_flowers_own_grids_and_nodes_are_as_expected(monkeypatch):
    grids = [
        flowers(f"flwr.superlink.grid.{name}") for name in ("grpc_grid", "http_grid")
    ]
    node = flowers("flwr.supernode.start_client_internal")
    found = [each for each in (*grids, node) if each is not None]
    assert len(found) == 2
    for each in found:
        monkeypatch.setattr(each, "pull_objects", each.pull_objects)
        assert pull_sooner(each)


def test_a_mailbox_lets_its_grids_module_pull_sooner(module, monkeypatch):
    class SomeGrid(HandlerGrid):
        """Defined in a module that pulls."""

    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(SomeGrid, "__module__", module.__name__)
    plain = module.pull_objects
    Mailbox(SomeGrid.__new__(SomeGrid))
    assert module.pull_objects is not plain
