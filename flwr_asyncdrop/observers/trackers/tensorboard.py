"""A run as TensorBoard sees it."""

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.observers.outcomes import Outcome
from flwr_asyncdrop.observers.trackers.tracker import Setting, Tracker
from flwr_asyncdrop.parameters import A_SWITCH
from flwr_asyncdrop.paths import AnyPath, as_path
from flwr_asyncdrop.state_dict import StateDict

logger = logging.getLogger("flwr.asyncdrop")

_PREFIX = "events.out.tfevents."


class TensorBoardTracker(Tracker):
    """Writes a run to a folder that ``tensorboard --logdir`` reads.

    `Tracker` lists the curves. The settings are those of the HParams tab. A run that
    resumes cuts the file off where its checkpoint was made, so no point is there
    twice.

    Parameters
    ----------
    folder : str or Path
        The run's own folder; it is made.
    settings : mapping of str to bool, int, float or str
        The hyperparameters that are shown.
    overwrite : bool
        Whether a run that begins may delete the points of another one in the folder.

    Raises
    ------
    MissingExtraError
        If tensorboard is not installed.
    ConfigError
        When the run begins, if the folder has another run's points.
    """

    tool: ClassVar[str] = "TensorBoard"

    def __init__(
        self,
        folder: AnyPath,
        settings: Mapping[str, Setting] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        require("tensorboard", "tensorboard")
        super().__init__(settings)
        self.folder = as_path("folder", folder).absolute()
        self._overwrite = A_SWITCH.check("overwrite", overwrite)
        self._file = Path()

    def check(self) -> None:
        """Refuse a folder with points that are not to be overwritten."""
        if not self._overwrite and any(self.folder.glob(f"{_PREFIX}*")):
            raise ConfigError(
                f"{self.folder} has the points of another run: choose another folder, "
                "or say overwrite"
            )

    def begin(self, settings: Mapping[str, Setting], began: float) -> StateDict:
        """Open a file in place of those that are there, and write the settings."""
        for path in self.folder.glob(f"{_PREFIX}*"):
            path.unlink()
        try:
            place = self._open(uuid4().hex, {})
            self._add([_session(settings, began)], 0, began)
        except OSError:  # the run resumes as one that was not tracked before
            with suppress(OSError):
                self._file.unlink()
            raise
        return self.where(place)

    def resume(self, place: StateDict, update: int, began: float) -> StateDict:
        """Cut off what came after the checkpoint, and open another file."""
        lengths = place["files"]
        for path in self.folder.glob(f"{_PREFIX}*.{place['run']}"):
            if path.name not in lengths:
                path.unlink()
        for name, length in lengths.items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size < length:
                logger.warning("%s has lost points of this run", path)
                continue
            with path.open("rb+") as file:
                file.truncate(length)
        return self.where(self._open(place["run"], lengths))

    def write(self, values: Mapping[str, float], update: int, at: float) -> None:
        """Write scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=n, simple_value=v) for n, v in values.items()]
        self._add(scalars, update, at)

    def finish(
        self, summary: Mapping[str, float], update: int, at: float, outcome: Outcome
    ) -> None:
        """Write the summary as a text, and how the run ended."""
        if outcome == "interrupted":
            return
        rows = "".join(
            f"| {name} | {value:,.10g} |\n" for name, value in summary.items()
        )
        text = f"| the run | {outcome} |\n|---|---|\n{rows}"
        self._add([_session_end(outcome, at), _text("summary", text)], update, at)

    def where(self, place: StateDict) -> StateDict:
        """Return the length of each file."""
        lengths = {**place["files"], self._file.name: self._file.stat().st_size}
        return {"run": place["run"], "files": lengths}

    def _open(self, run: str, lengths: Mapping[str, int]) -> StateDict:
        from tensorboard.compat.proto.event_pb2 import Event

        self.folder.mkdir(parents=True, exist_ok=True)
        # Its readers take the files in the order of their names, wherever the clock is.
        seconds = max([int(time.time()), *map(_seconds_in, lengths)])
        stem = f"{_PREFIX}{seconds:010}.{len(lengths):04}.{socket.gethostname()}"
        self._file = self.folder / f"{stem}.{run}"
        self._file.touch(exist_ok=False)
        self._record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        return {"run": run, "files": dict(lengths)}

    def _add(self, summaries: Sequence[Any], update: int, at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if summaries:
            summary = Summary(value=summaries)
            self._record(Event(wall_time=at, step=update, summary=summary))

    def _record(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Not appended to: a file that somebody has deleted is not made again.
        with self._file.open("rb+") as file:
            file.seek(0, os.SEEK_END)
            RecordWriter(file).write(event.SerializeToString())


def _seconds_in(name: str) -> int:
    """Return when a file was opened, as its name says."""
    return int(name.removeprefix(_PREFIX).partition(".")[0])


def _session(settings: Mapping[str, Setting], began: float) -> Any:
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    return hparams_pb(dict(settings), start_time_secs=began).value[0]


def _session_end(outcome: Outcome, at: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    well = outcome == "finished"
    info = plugin_data_pb2.SessionEndInfo(
        status=api_pb2.STATUS_SUCCESS if well else api_pb2.STATUS_FAILURE,
        end_time_secs=at,
    )
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    return Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )


def _text(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text import metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    return Summary.Value(
        tag=tag,
        metadata=metadata.create_summary_metadata(display_name=tag, description=""),
        tensor=make_tensor_proto([text.encode()]),
    )
