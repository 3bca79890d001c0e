"""A checkpoint that has been read, and which one a run resumes from."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flwr_asyncdrop.checkpoint.codec import Json, unpack
from flwr_asyncdrop.checkpoint.files import (
    FOLDER,
    START_OVER,
    all_checkpoints,
    has_state,
    is_checkpoint,
    read_body,
    read_tensors,
    run_of,
)
from flwr_asyncdrop.checkpoint.refusal import refusal_of
from flwr_asyncdrop.completeness.kept import is_users
from flwr_asyncdrop.completeness.own_state import OwnState, names_in
from flwr_asyncdrop.exceptions import CheckpointError, DamagedError, ShapeError
from flwr_asyncdrop.server.callbacks import CALLBACK_PART
from flwr_asyncdrop.state_dict import StateDict, Stateful, load_saved

logger = logging.getLogger("flwr.asyncdrop")

_OWN = f"{CALLBACK_PART}{OwnState.name}"
_OWN_CALLED = "what your own strategy, functions or callbacks keep"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read."""

    path: Path
    run: str
    """The id of its run."""
    settings: dict[str, Json]
    """The settings of the run."""
    updates: int
    devices: int
    """Devices seen by then."""
    parts: dict[str, StateDict]
    """The state of each part of the run, by name."""

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint; what is missing or damaged raises a CheckpointError."""
        body = read_body(path)
        parts = unpack(body["parts"], read_tensors(path, body["tensors_sha256"]))
        return cls(
            path,
            body["run"],
            body["settings"],
            body["updates"],
            body["devices"],
            parts,
        )

    def check_settings(
        self,
        now: Mapping[str, Json],
        defaults: Mapping[str, Json],
        incidental: Collection[str],
        digests: Mapping[str, str],
    ) -> None:
        """Raise CheckpointError unless its run has the settings of `now`.

        Those that it does not know have their `defaults`; `incidental` ones may differ,
        and so may a file's name whose digest, of `digests`, both runs have.
        """
        were = {**defaults, **self.settings}
        files = {
            name
            for name, digest in digests.items()
            if digest in self.settings and digest in now
        }
        free = files.union(incidental)
        differences = [
            f"{key} {were.get(key)!r}, now {now.get(key)!r}"
            for key in {**were, **now}
            if key not in free and _differ(were.get(key), now.get(key))
        ]
        if differences:
            raise CheckpointError(
                f"{self.path} is of a run with another configuration "
                f"({'; '.join(differences)}): resume with the same, or {START_OVER}"
            )

    def restore(self, parts: Mapping[str, Stateful]) -> None:
        """Load into each part of a run the state that was saved of it.

        A callback that was not saved starts afresh, and the state of one that is not
        there now is left out.
        """
        gone = sorted(self.parts.keys() - parts.keys())
        if _OWN in gone:
            gone.remove(_OWN)
            gone += names_in(self.parts[_OWN])
        for name in gone:
            logger.warning(
                "%s has the state of %r, which is not there now: it is left out",
                self.path,
                name,
            )
        for name, part in parts.items():
            if name.startswith(CALLBACK_PART) and name not in self.parts:
                called = _OWN_CALLED if name == _OWN else repr(name)
                logger.info("%s does not know %s: it starts afresh", self.path, called)
                continue
            load = part.load_state_dict
            if name.startswith(CALLBACK_PART) and is_users(part):
                load = partial(load_saved, part)
            try:
                load(self.parts[name])
            except ShapeError as error:
                raise CheckpointError(
                    f"{self.path} is of another model ({error}): resume with the "
                    f"same, or {START_OVER}"
                ) from error
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{self.path} does not fit this version of flwr-asyncdrop ({name}: "
                    f"{error}): resume with the version that wrote it, or {START_OVER}"
                ) from error


def newest(folder: Path) -> Checkpoint:
    """Return the newest checkpoint of a run's folder that is not damaged.

    Given the folder of one checkpoint, return that one. A CheckpointError says why
    there is none, or that those there are of different runs.
    """
    if is_checkpoint(folder):
        return Checkpoint.read(folder)
    if reason := refusal_of(folder / FOLDER):
        raise CheckpointError(f"{folder}: {reason}: start it again")
    candidates = all_checkpoints(folder / FOLDER)
    if not candidates and not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder: resume takes that of a run")
    if not candidates and has_state(folder):
        raise CheckpointError(
            f"{folder} is a checkpoint away from its run: resume takes the folder of a "
            "run, or a checkpoint in it"
        )
    if not candidates and all_checkpoints(folder):
        raise CheckpointError(
            f"{folder} is the folder of checkpoints: resume takes {folder.parent}, the "
            "folder of the run, or that of one checkpoint"
        )
    if not candidates:
        raise CheckpointError(
            f"{folder} has no checkpoint to resume from: the run ended, never began, "
            "or had checkpoint-every=0"
        )
    found = _first_whole(candidates)
    for path in candidates:
        if run_of(path) not in ("", found.run):
            raise CheckpointError(
                f"{found.path} and {path} are of different runs: take away the one "
                "that does not belong there"
            )
    return found


def _differ(was: Json, now: Json) -> bool:
    """Return whether settings differ; NaN is equal to itself."""
    return bool(was != now) and repr(was) != repr(now)


def _first_whole(candidates: Sequence[Path]) -> Checkpoint:
    errors = []
    for path in candidates:
        try:
            return Checkpoint.read(path)
        except CheckpointError as error:
            errors.append(error)
            if path != candidates[-1]:
                logger.warning("%s; trying the one before", error)
    # Of damaged ones nothing can be had: one that cannot be read now may be whole.
    whole = (error for error in errors if not isinstance(error, DamagedError))
    raise next(whole, errors[-1])


def run_folder(path: Path) -> Path:
    """Return the folder of a run from itself or from that of one of its checkpoints."""
    return path.parent.parent if is_checkpoint(path) else path
