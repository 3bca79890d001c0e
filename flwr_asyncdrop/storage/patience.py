"""Writing what must not be lost: until the disk takes it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flwr_asyncdrop.exceptions import FolderError


@dataclass(frozen=True)
class Patience:
    """How long to try to write something again.

    Parameters
    ----------
    seconds : float
        After how long to give up.
    first, longest : float
        Seconds from one attempt to the next, each twice the one before.
    sleep : callable
        Waits for so many seconds.
    """

    seconds: float = 3600.0
    first: float = 0.1
    longest: float = 5.0
    sleep: Callable[[float], None] = time.sleep

    def until_written(
        self,
        path: Path,
        write: Callable[[], object],
        say: Callable[[str], None],
        otherwise: Callable[[], str],
    ) -> None:
        """Write a file; where an OSError comes out, say it once, wait, and try again.

        FolderError after the last attempt. `otherwise` returns what to do then.
        """
        waited, pause, told = 0.0, self.first, ""
        while True:
            try:
                write()
            except OSError as error:
                reason = f"cannot write {path}: {error.strerror or error}"
                if waited >= self.seconds:
                    raise FolderError(f"{reason}; {otherwise()}") from error
                if reason != told:
                    told = reason
                    say(f"{reason}; waiting until that is possible ({otherwise()})")
            else:
                return
            self.sleep(pause)
            waited += pause
            pause = min(2 * pause, self.longest)
