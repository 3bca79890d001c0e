import logging

from flwr_asyncdrop.cli.logs import warnings_to


def test_warnings_are_said_here_and_nothing_elsewhere(capsys):
    logger = logging.getLogger("flwr.asyncdrop")
    handlers = logging.getLogger("flwr").handlers[:]
    said = []
    with warnings_to(said.append):
        logger.info("all is well")
        logger.warning("device %d is gone", 3)
    assert said == ["warning: device 3 is gone"]
    assert logging.getLogger("flwr").handlers == handlers
    assert capsys.readouterr() == ("", "")
