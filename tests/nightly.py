"""What takes too long for the gate: `make nightly` sets ASYNCDROP_NIGHTLY."""

import os

import pytest

NIGHTLY = "ASYNCDROP_NIGHTLY" in os.environ


def nightly(*values, id=None):  # noqa: A002  # as pytest.param has it
    """Return the arguments of a test that is run by night only."""
    skip = pytest.mark.skipif(not NIGHTLY, reason="make nightly")
    return pytest.param(*values, id=id, marks=skip)
