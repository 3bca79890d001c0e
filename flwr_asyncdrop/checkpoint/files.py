"""One checkpoint on disk: a folder that is there as a whole or not at all.

``state.safetensors`` has the tensors, ``state.json`` all else and the tensors' digest.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from flwr_asyncdrop.checkpoint.codec import Json, decode
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import State

FORMAT_VERSION = 1
_FORMAT = "flwr-asyncdrop checkpoint"
_JSON, _TENSORS = "state.json", "state.safetensors"
_DIGITS = 6
_START_OVER = "start the run again without resume"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read.

    Attributes
    ----------
    path : Path
        Its folder.
    settings : dict of str to JSON values
        What the run was told.
    updates : int
        Updates merged by then.
    devices : int
        Devices seen by then.
    parts : dict of str to JSON values
        All that was saved, but for the tensors; see `part`.
    tensors_sha256 : str
        Digest that the file of tensors must have.
    """

    path: Path
    settings: dict[str, Json]
    updates: int
    devices: int
    parts: dict[str, Json]
    tensors_sha256: str

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors, each in memory of its own.

        Raises
        ------
        CheckpointError
            If the file is not as it was written.
        """
        path = self.path / _TENSORS
        try:
            if _sha256(path) != self.tensors_sha256:
                raise _damaged(path, "its digest is another")
            # Cloned: the file may be mapped, and older checkpoints are deleted.
            return {name: tensor.clone() for name, tensor in load_file(path).items()}
        except (OSError, SafetensorError) as error:
            raise _damaged(path, str(error)) from error

    def state(self, begun: RunState) -> RunState:
        """Return the state of the run.

        Parameters
        ----------
        begun : RunState
            What it would be if the run began now; for its model.

        Raises
        ------
        CheckpointError
            If the model is another.
        """
        state: RunState = self.part("state", RunState)
        shapes, now = _shapes(state.initial), _shapes(begun.initial)
        if shapes != now:
            odd = sorted(dict(shapes.items() ^ now.items()))
            raise CheckpointError(
                f"{self.path} is of another model (see {odd[0]!r}): go on with the "
                f"same, or {_START_OVER}"
            )
        return state

    def part(self, name: str, kind: Any) -> Any:
        """Return a part as it was when it was saved.

        Parameters
        ----------
        name : str
            Its name.
        kind : type
            What it was declared as.

        Raises
        ------
        CheckpointError
            If it was saved by another version, or the tensors are damaged.
        """
        tensors = self.tensors
        try:
            return decode(self.parts[name], kind, tensors)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} does not fit this version of flwr-asyncdrop ({name}: "
                f"{error}): go on with the version that wrote it, or {_START_OVER}"
            ) from error


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def forget_later(path: Path) -> None:
    """Delete the checkpoints that are newer than one.

    A run that goes on from it does its history again, which they count on.
    """
    for other in all_checkpoints(path.parent):
        if int(other.name) > int(path.name):
            shutil.rmtree(other)


def write(
    folder: Path,
    body: Mapping[str, Json],
    tensors: Mapping[str, Tensor],
    keep: int,
    files: Iterable[Path] = (),
) -> Path:
    """Write a checkpoint, and delete the oldest.

    Whenever the machine stops, there is the new one, or all that were there before.

    Parameters
    ----------
    folder : Path
        Folder of the checkpoints; made if need be.
    body : mapping of str to JSON values
        The fields of `Checkpoint`, but for its path and what is known of the tensors.
    tensors : mapping of str to Tensor
        The tensors.
    keep : int
        Checkpoints that there are at most afterwards.
    files : iterable of Path
        What else must be on the disk before it.

    Returns
    -------
    Path
        Its folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = all_checkpoints(folder)
    number = int(before[0].name) + 1 if before else 1
    path = folder / f"{number:0{_DIGITS}}"
    for left_over in folder.glob("*.tmp"):
        shutil.rmtree(left_over)
    draft = path.with_suffix(".tmp")
    draft.mkdir()
    save_file(_apart(tensors), draft / _TENSORS)
    content = {
        "format": _FORMAT,
        "format_version": FORMAT_VERSION,
        "written_by": version("flwr-asyncdrop"),
        "tensors_sha256": _sha256(draft / _TENSORS),
        **body,
    }
    (draft / _JSON).write_text(
        json.dumps({**content, "sha256": _digest(content)}), encoding="utf-8"
    )
    for written in (*files, draft / _TENSORS, draft / _JSON, draft):
        _sync(written)
    draft.rename(path)
    _sync(folder)
    for old in all_checkpoints(folder)[keep:]:
        shutil.rmtree(old)
    return path


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, but for its tensors, which are read when they are needed.

    Raises
    ------
    CheckpointError
        If it is missing or damaged, newer than this version, or something else.
    """
    file = path / _JSON
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {file}: {error.strerror}; {_START_OVER}"
        ) from error
    except ValueError as error:
        raise _damaged(file, "it is not JSON") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(
            f"{file} is not a checkpoint of flwr-asyncdrop: resume takes the folder of "
            "a run"
        )
    digest = content.pop("sha256", None)
    if content.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} was written by flwr-asyncdrop {content.get('written_by')} in "
            f"format {content.get('format_version')}, and this version reads "
            f"{FORMAT_VERSION}: go on with that version, or {_START_OVER}"
        )
    if digest != _digest(content):
        raise _damaged(file, "its digest is another")
    names = ("settings", "updates", "devices", "parts", "tensors_sha256")
    return Checkpoint(path, **{name: content[name] for name in names})


def _damaged(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {file} is damaged ({' '.join(reason.split())}): delete its "
        f"folder to go on from the one before, or {_START_OVER}"
    )


def _shapes(arrays: State) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in arrays.items()}


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors so that no two share memory, which the format cannot say."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().contiguous()
        address = own.untyped_storage().data_ptr()
        apart[name] = own.clone() if address in seen else own
        seen.add(address)
    return apart


def _digest(content: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
