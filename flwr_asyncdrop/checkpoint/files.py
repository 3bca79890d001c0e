"""One checkpoint on disk: a folder that is written as a whole or not at all.

``state.safetensors`` has the tensors, ``state.json`` all else and the tensors' digest.
"""

import hashlib
import json
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from flwr_asyncdrop.checkpoint.codec import Json
from flwr_asyncdrop.checkpoint.refusal import forget_refusal
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError, DamagedError
from flwr_asyncdrop.storage.whole import sync
from flwr_asyncdrop.versions import PACKAGE, version_of

FOLDER = "checkpoints"
"""Name of the folder of checkpoints in that of their run."""

START_OVER = "start the run again without resume"
FORMAT_VERSION = 4
_FORMAT = "flwr-asyncdrop checkpoint"
_JSON, _TENSORS = "state.json", "state.safetensors"
_DIGITS = 6
_NUMBER = re.compile(r"[0-9]{6,}")
_DRAFT = re.compile(r"draft-[0-9a-f]{32}")
_RIGHTS_OF_FILES = 0o666
_UNFINISHED = re.compile(r"\.tmp[0-9A-Za-z]+")
"""What safetensors calls a file until all of it is written."""


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first.

    A checkpoint is a folder with a number for a name and a state in it, damaged or not.
    CheckpointError if nobody can tell, as the folder may not be read.
    """
    found = [path for path in _numbered(folder) if has_state(path)]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is that of one checkpoint, there or not, and of no run."""
    if path.parent.name != FOLDER or not _NUMBER.fullmatch(path.name):
        return False
    try:
        return not (path / FOLDER).is_dir()
    except PermissionError:
        return True


def has_state(path: Path) -> bool:
    """Return whether a folder has the state of a checkpoint, wherever it lies."""
    try:
        return stat.S_ISREG((path / _JSON).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from error


def checkpoints_of(folder: Path, run: str) -> list[Path]:
    """Return those of one run, by its id, the newest first."""
    return [path for path in all_checkpoints(folder) if run_of(path) == run]


def run_of(path: Path) -> str:
    """Return the id of the run that a checkpoint is of, "" if it cannot be read."""
    try:
        return str(read_body(path)["run"])
    except CheckpointError:
        return ""


def updates_of(path: Path) -> int:
    """Return after how many updates a checkpoint was written, known to be complete.

    0 if that is not known: it is damaged, or of a version that did not look.
    """
    try:
        body = read_body(path)
    except CheckpointError:
        return 0
    return int(body["updates"]) if body.get("complete") else 0


def all_of_ours(folder: Path) -> list[Path]:
    """Return the checkpoints that this package wrote, of whatever run and version."""
    return [path for path in all_checkpoints(folder) if _is_ours(path / _JSON)]


def delete(paths: Iterable[Path]) -> None:
    """Delete checkpoints, each in one step: half a one must not look like one.

    Of one with a file that is not ours, that file stays in its place. Of a link, what
    it leads to stays.
    """
    for path in paths:
        draft = path.with_name(_draft_name())
        with suppress(FileNotFoundError):  # somebody else has
            if path.is_symlink():
                path.unlink()
                continue
            if _holds_only_ours(path):
                path.rename(draft)
                shutil.rmtree(draft)
                continue
            for name in (_JSON, _TENSORS):  # without the first it is none
                (path / name).unlink()


def discard(folder: Path) -> None:
    """Delete the checkpoints of a run that is over.

    Their folder goes, too, if nothing else is in it. Where they are of several runs,
    none is deleted.
    """
    delete_drafts(folder)
    by_run = {path: run_of(path) for path in all_checkpoints(folder)}
    ours = [path for path, run in by_run.items() if run]
    if len({by_run[path] for path in ours}) == 1:
        delete(ours)
    with suppress(OSError):
        forget_refusal(folder)
    with suppress(OSError):  # it never was there, or has what is not ours
        folder.rmdir()


def delete_drafts(folder: Path) -> None:
    """Delete what processes that were killed have left of checkpoints.

    Nobody else may be writing there.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if not _DRAFT.fullmatch(path.name) or path.is_symlink():
            continue
        if path.is_dir() and _holds_only_ours(path):
            shutil.rmtree(path)


def write(
    folder: Path,
    body: Mapping[str, Json],
    tensors: Mapping[str, Tensor],
    files: Iterable[Path] = (),
) -> Path:
    """Write a checkpoint; return its folder.

    If the machine stops, or there is an error, it is there as a whole or not at all.
    The `files` are on the disk before it is. The body has ``run``, ``settings``,
    ``updates``, ``devices`` and ``parts``, which name the tensors; and ``complete`` if
    it was looked whether they are all that the run depends on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in _numbered(folder)]
    path = folder / f"{max(numbers, default=0) + 1:0{_DIGITS}}"
    draft = folder / _draft_name()
    draft.mkdir()
    try:
        _save(tensors, draft / _TENSORS)
        content = {
            "format": _FORMAT,
            "format_version": FORMAT_VERSION,
            "written_by": version_of(PACKAGE),
            "tensors_sha256": _sha256(draft / _TENSORS),
            **body,
        }
        (draft / _JSON).write_text(
            json.dumps({**content, "sha256": _digest(content)}), encoding="utf-8"
        )
        for written in (*files, draft / _TENSORS, draft / _JSON, draft):
            sync(written)
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)  # it may be what fills the disk
        raise
    sync(folder)
    return path


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file(apart(tensors), path)
    except KeyError as error:  # a type such as complex128
        raise SafetensorError(f"safetensors has no {error}") from error
    with suppress(OSError):  # a file system without rights
        # safetensors leaves it to its user alone, whatever the umask says.
        path.chmod(path.parent.stat().st_mode & _RIGHTS_OF_FILES)


def check_types(tensors: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for a tensor of a type that a file of a model cannot have."""
    for name, tensor in tensors.items():
        try:
            save({name: torch.empty(0, dtype=tensor.dtype)})
        except KeyError as error:
            raise ConfigError(
                f"{name!r} of the model is of {tensor.dtype}, which safetensors cannot "
                "write: give it another type, such as complex64 for complex128"
            ) from error


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: contiguous, no two with one memory."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().resolve_conj().resolve_neg().contiguous()
        address = own.untyped_storage().data_ptr()
        found[name] = own.clone() if address in seen else own
        seen.add(address)
    return found


def read_body(path: Path) -> dict[str, Json]:
    """Return what a checkpoint holds beside its tensors."""
    file = path / _JSON
    try:
        content = _load(file)
    except OSError as error:
        raise _unreadable(file, error) from error
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
        return _load_tensors(file)
    except (FileNotFoundError, SafetensorError) as error:
        raise _damaged(file, str(error)) from error
    except OSError as error:
        raise _unreadable(file, error) from error


def _load_tensors(file: Path) -> dict[str, Tensor]:
    try:
        str(file).encode()
    except UnicodeEncodeError:  # safetensors writes such a path, and opens none
        return load(file.read_bytes())
    # The file may be mapped, and older checkpoints are deleted.
    return {name: tensor.clone() for name, tensor in load_file(file).items()}


def _unreadable(file: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot read the checkpoint {file}: {error.strerror or error}; {START_OVER}"
    )


def _damaged(file: Path, reason: str) -> DamagedError:
    return DamagedError(
        f"the checkpoint {file} is damaged ({' '.join(reason.split())}): delete its "
        f"folder to resume from the one before, or {START_OVER}"
    )


def _digest(content: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_ours(file: Path) -> bool:
    try:
        content = _load(file)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == _FORMAT


def _load(file: Path) -> Json:
    """Read JSON; ValueError if it is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _numbered(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if _NUMBER.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoints in {folder}: {error.strerror or error}; let "
            "this user read them, or choose another folder"
        ) from error


def _draft_name() -> str:
    return f"draft-{uuid4().hex}"


def _holds_only_ours(folder: Path) -> bool:
    return all(
        path.name in (_JSON, _TENSORS) or _UNFINISHED.fullmatch(path.name)
        for path in folder.iterdir()
    )
