"""Reading a history that may have been damaged."""

from pathlib import Path

from flwr_asyncdrop.exceptions import AsyncDropError, DataError
from flwr_asyncdrop.observers.history import read_history
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.summary import Summary
from flwr_asyncdrop.storage.done import is_as_marked


def read_log(path: Path) -> RunLog:
    """Read a history; DataError if it is not what a run has written."""
    if not is_as_marked(path.parent, path.name):
        raise DataError(
            f"{path} was changed after its run had ended: put the run's own back, or "
            "do the run again"
        )
    try:
        log = RunLog.from_records(read_history(path))
        Summary(log).text()  # which looks at all that reports need
    except AsyncDropError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as bad:
        raise DataError(
            f"the history {path} is damaged ({one_line(bad)}): do the run again"
        ) from bad
    return log
