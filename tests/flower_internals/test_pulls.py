"""What waits for the parts of a message waits less."""

import importlib

import pytest

from flwr_asyncdrop.flower_internals.pulls import waiting_less
from tests.flower_internals.clocks import SHORTER_WAITS


@pytest.fixture
def flowers():
    """The module that defines Flower's own function."""
    return importlib.import_module("flwr.supercore.inflatable.inflatable_utils")


def test_parts_that_come_later_are_looked_for_sooner(flowers, waits):
    plain = flowers.pull_objects
    looks = []

    def pull(object_id):
        looks.append(object_id)
        if len(looks) < 3:
            raise flowers.ObjectUnavailableError("not yet")
        return b"part"

    assert waiting_less(vars(flowers))(["a"], pull) == {"a": b"part"}
    assert waits == SHORTER_WAITS
    assert flowers.pull_objects is plain


def test_a_function_that_is_not_there_or_another_is_left_alone():
    assert waiting_less({}) is None
    assert waiting_less({"pull_objects": lambda object_ids: {}}) is None
