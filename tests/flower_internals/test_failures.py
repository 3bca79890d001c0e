"""What Flower logs of a ServerApp that failed ends with the error's line."""

import logging

import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.flower_internals.failures import end_with_line


@pytest.fixture
def log(caplog):
    logger = logging.getLogger("flwr")
    before = list(logger.filters)
    with caplog.at_level(logging.DEBUG, "flwr"):
        yield logger
    logger.filters[:] = before


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_no_traceback_and_the_line_last(log, caplog):
    error = raised(ConfigError("lr=-1 must be more than 0"))
    end_with_line(error)
    wrapped = RuntimeError("Ending simulation.")
    wrapped.__cause__ = error
    log.error("ServerApp raised an exception", exc_info=error)
    log.error("%s raised an exception", "Simulation", exc_info=raised(wrapped))
    log.error("Traceback (most recent call last):\nConfigError: %s", error)
    log.error("Exit Code: 700\n\nSee <https://flower.ai>")
    assert "Traceback" not in caplog.text
    assert caplog.messages[0] == "ServerApp raised an exception"
    assert caplog.messages[-1].splitlines()[-1] == "lr=-1 must be more than 0"


def test_other_errors_keep_their_tracebacks(log, caplog):
    end_with_line(ConfigError("lr=-1 must be more than 0"))
    log.error("raised", exc_info=raised(KeyError("bug")))
    log.error("Traceback (most recent call last):\nKeyError: 'bug'")
    assert caplog.text.count("Traceback") == 2
