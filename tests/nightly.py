"""What takes too long for the gate: `make nightly` sets ASYNCDROP_NIGHTLY."""

import os
from importlib.metadata import version

import pytest

NIGHTLY = "ASYNCDROP_NIGHTLY" in os.environ
FEWER = 3

# Up to 1.34 with gRPC; later with HTTP
_HAS_GRPC = tuple(int(part) for part in version("flwr").split(".")[:2]) < (1, 35)

once_in_the_gate = pytest.mark.skipif(
    _HAS_GRPC and not NIGHTLY, reason="the gate has it on the newest Flower"
)
"""Marks a test that Flower's version makes no difference to: only by night on 1.34."""


by_night = pytest.mark.skipif(not NIGHTLY, reason="make nightly")
"""Marks a test that is run by night only."""


def nightly(*values, id=None):  # noqa: A002  # as pytest.param has it
    """Return the arguments of a test that is run by night only."""
    return pytest.param(*values, id=id, marks=by_night)


def examples(by_night):
    """Return how many examples of a property are tried: a third in the gate.

    They are other ones each time.
    """
    return by_night if NIGHTLY else -(-by_night // FEWER)
