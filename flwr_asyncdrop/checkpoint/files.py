"""One checkpoint on disk: a folder that is written as a whole or not at all.

``state.safetensors`` has the tensors, ``state.json`` all else and the tensors' digest.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from flwr_asyncdrop.checkpoint.codec import Json
from flwr_asyncdrop.exceptions import CheckpointError

FOLDER = "checkpoints"
"""Name of the folder of checkpoints in that of their run."""

START_OVER = "start the run again without resume"
FORMAT_VERSION = 2
_FORMAT = "flwr-asyncdrop checkpoint"
_JSON, _TENSORS = "state.json", "state.safetensors"
_DIGITS = 6


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def forget_later(path: Path) -> None:
    """Delete the checkpoints that are newer than one that a run resumes from.

    They count on the history after it, which the run writes again.
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
    """Write a checkpoint, and delete the oldest but for `keep`; return its folder.

    If the machine stops, there is the new one, or all that were there before. The
    `files` are on the disk before it is. The body has ``settings``, ``updates``,
    ``devices`` and ``parts``, which name the tensors.
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


def read_body(path: Path) -> dict[str, Json]:
    """Return what a checkpoint holds beside its tensors."""
    file = path / _JSON
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {file}: {error.strerror}; {START_OVER}"
        ) from error
    except (ValueError, RecursionError) as error:
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
            f"{FORMAT_VERSION}: resume with that version, or {START_OVER}"
        )
    if digest != _digest(content):
        raise _damaged(file, "its digest is another")
    return content


def read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, copied from the file."""
    file = path / _TENSORS
    try:
        if _sha256(file) != sha256:
            raise _damaged(file, "its digest is another")
        # The file may be mapped, and older checkpoints are deleted.
        return {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise _damaged(file, str(error)) from error


def _damaged(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {file} is damaged ({' '.join(reason.split())}): delete its "
        f"folder to resume from the one before, or {START_OVER}"
    )


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
