"""What benchmarks change for their whole process is put back."""

import logging

import pytest


@pytest.fixture(autouse=True)
def same_log_level():
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)
