"""The parts of a run as a checkpoint has them, and what of them it lacks."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from torch import Tensor

from flwr_asyncdrop.checkpoint.codec import Json, NoStateError, pack, unpack
from flwr_asyncdrop.completeness.kept import kind_of
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.state_dict import (
    Composite,
    Incomplete,
    Restorable,
    Stateful,
    state_to_save,
)

Parts = Mapping[str, Stateful]
"""What a run is made of, by name."""


def pack_parts(parts: Parts) -> tuple[dict[str, Json], dict[str, Tensor]]:
    """Return the states of parts, and their tensors.

    CheckpointError if a user's own part has no state that can be saved.
    """
    states = {name: state_to_save(part) for name, part in parts.items()}
    try:
        return pack(states)
    except NoStateError as error:
        raise CheckpointError(_told(parts, error)) from error


def lacking(
    parts: Parts, states: Mapping[str, Json], tensors: Mapping[str, Tensor]
) -> str:
    """Return what a run that resumes would lack that has these states; or ""."""
    for name, part in parts.items():
        if isinstance(part, Restorable):
            lacks = part.not_in(partial(unpack, states[name], tensors))
            if lacks:
                return lacks
    return ""


def left_out(parts: Parts) -> Iterator[str]:
    """Yield what the states made last lack, and a run can do without."""
    for part in parts.values():
        if isinstance(part, Incomplete) and (lacks := part.left_out()):
            yield lacks


def _told(parts: Parts, error: NoStateError) -> str:
    """Return what is no state, and whose `state_dict` has it."""
    name, *keys = error.keys
    part: object = parts[str(name)]
    inner: Sequence[str | int] = keys
    if isinstance(part, Composite):
        part, inner = part.part_at(keys)
    where = "".join(f"[{key!r}]" for key in inner)
    return f"{kind_of(part)}.state_dict(){where}{error.says}"
