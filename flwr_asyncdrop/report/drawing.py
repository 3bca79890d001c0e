"""Matplotlib, imported: what it says or lacks is a line that says what to do."""

import logging

from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.extras import (
    MATPLOTLIB_FOLDER,
    logs_of,
    matplotlib_fix,
    require,
)
from flwr_asyncdrop.readable import one_line

logger = logging.getLogger("flwr.asyncdrop")


def require_matplotlib() -> None:
    """Import Matplotlib; a MissingExtraError says why that cannot be done.

    It warns if Matplotlib has to make its cache anew each time, as for a user without a
    home folder.
    """
    try:
        with logs_of("matplotlib") as said:
            require("matplotlib", "report")
            require("matplotlib.font_manager", "report")  # which has the cache
    except MissingExtraError as error:
        cause = error.__cause__
        if cause is None or not (fix := matplotlib_fix(cause)):
            raise
        raise MissingExtraError(
            f"matplotlib cannot be imported ({one_line(cause)}): {fix}",
            name="matplotlib",
        ) from cause
    if said:
        logger.warning(
            "Matplotlib cannot keep its cache, and is slower to begin (%s): %s",
            said[0],
            MATPLOTLIB_FOLDER,
        )
