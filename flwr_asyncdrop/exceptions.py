"""The exceptions of flwr-asyncdrop.

::

    AsyncDropError
    ├── ConfigError            a run-config key is unknown, wrong or contradictory
    ├── CheckpointError        a checkpoint cannot be used
    │   └── DamagedError           its files are not what was written
    ├── FolderError            a run's folder is in use, or cannot be written
    │   └── FolderInUseError       by somebody else
    ├── DataError              a data set is missing or damaged
    ├── MissingExtraError      a package is missing that an extra brings
    ├── SubmodelError
    │   ├── UnsupportedModelError  no submodels can be made of this module
    │   ├── ShapeError             tensors that do not fit the model or the plan
    │   └── CapacityError          no submodel is small enough for a device
    ├── ReplyError             a client's reply cannot be merged (costs the task)
    └── RunError               the run cannot continue
        └── GridError              a call of Flower's grid failed (costs the message)
            └── GridLostError          they fail for so long that the run ends

    BaseException
    └── Interrupted            a signal stopped the run, which is saved
"""

from pathlib import Path
from signal import Signals
from typing import Literal


class AsyncDropError(Exception):
    """Base class of every error that flwr-asyncdrop raises on purpose.

    The message is one line: what is wrong, with the value, and how to fix it.
    """


class ConfigError(AsyncDropError, ValueError):
    """A run-config key is unknown, has a wrong value, or contradicts another."""


class CheckpointError(AsyncDropError):
    """A checkpoint is missing, damaged, or of another run or version."""


class DamagedError(CheckpointError):
    """The files of a checkpoint are not what was written."""


class FolderError(AsyncDropError):
    """A run's folder is in use by somebody else, or its files cannot be written."""


class FolderInUseError(FolderError):
    """A folder is in use by somebody else: `holder` says in words by whom."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"{folder} is in use by {holder}: let it end, or choose another folder"
        )
        self.holder = holder


class DataError(AsyncDropError):
    """A data set is missing, damaged, or not in the layout that was asked for."""


class MissingExtraError(AsyncDropError, ImportError):
    """A package is not installed that comes with an extra of this one."""


class SubmodelError(AsyncDropError):
    """Something is wrong with a submodel."""


class CapacityError(SubmodelError):
    """A device lacks the memory for even the smallest submodel."""


class UnsupportedModelError(SubmodelError):
    """No verified submodel can be made of this module."""


class ShapeError(SubmodelError, ValueError):
    """Tensors that do not fit the model or the plan that they are used with."""


ReplyKind = Literal[
    "client-error",
    "codec",
    "counter",
    "dtype",
    "frozen",
    "metrics",
    "names",
    "non-finite",
    "num-examples",
    "outlier",
    "records",
    "shape",
    "unreadable",
    "variance",
    "work",
]
"""What is wrong with a reply; docs/robustness.md says of each what it means."""


class ReplyError(AsyncDropError):
    """A client's reply cannot be merged: it costs the task, never the run.

    `kind` counts failures of a sort.
    """

    def __init__(self, kind: ReplyKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RunError(AsyncDropError):
    """The run cannot continue: no node came, or every task fails."""


class GridError(RunError):
    """A call of Flower's grid failed, also when it was tried again.

    It costs the message that was to be sent, not the run.
    """


class GridLostError(GridError):
    """Nothing has come through Flower's grid for the timeout: the run is saved."""


class Interrupted(BaseException):
    """A signal has stopped the run between two events; it can be resumed later.

    Like ``KeyboardInterrupt``, it is no error that a ClientApp in this process, or
    whoever calls one, should catch.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {Signals(signum).name}")
        self.signum = signum
