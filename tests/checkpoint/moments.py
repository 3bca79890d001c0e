"""The moments at which a process changes something on the disk.

A moment is just before a file is opened for writing, renamed or deleted, or a folder
made or deleted; between two of them the disk is as it is. Its name is what happens
and to which file, ``"os.rename .done.json.tmp"``.
"""

import errno
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import flwr_asyncdrop.app.end
from flwr_asyncdrop.storage.whole import write_whole

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True)
class Moments:
    """What a process does at its moments.

    Attributes
    ----------
    folder : Path
        Only what happens in it counts.
    kill : str
        Pattern of the moment at which the process kills itself; "" for none.
    fail : range
        Numbers, from 1, of those that fail.
    code : int
        With which error.
    notes : Path, optional
        Gets a line for each moment.
    """

    folder: Path
    kill: str = ""
    fail: range = range(0)
    code: int = errno.ENOSPC
    notes: Path | None = None

    def begin(self) -> None:
        """Begin in this process, whose pictures are quick from now on."""
        flwr_asyncdrop.app.end.draw_run = _draw
        descriptor = None
        if self.notes is not None:
            descriptor = os.open(self.notes, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        count = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            name = self._name(event, arguments)
            if not name:
                return
            count += 1
            if descriptor is not None:
                os.write(descriptor, f"{name}\n".encode())
            if self.kill and re.search(self.kill, name):
                os.kill(os.getpid(), signal.SIGKILL)
            if count in self.fail:
                raise OSError(self.code, os.strerror(self.code), str(arguments[0]))

        sys.addaudithook(hook)

    def _name(self, event: str, arguments: tuple[object, ...]) -> str:
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & _WRITES:
                return ""
        elif event not in _CHANGES:
            return ""
        path = str(arguments[0])
        if event == "os.mkdir" and Path(path).is_dir():  # nothing changes
            return ""
        # shutil.rmtree deletes it from inside its folder.
        if path != "state.json" and not path.startswith(f"{self.folder}/"):
            return ""
        return f"{event} {Path(path).name}"


def _draw(history: Path, png: Path) -> Path:
    """Make a picture that is a function of the history, but not of the machine."""
    return write_whole(png, str(history.read_bytes().count(b"\n")).encode())
