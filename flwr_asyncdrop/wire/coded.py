"""The arrays of one task, coded: the weights down, their change back up.

A coded tensor travels under its own name, as an ``Array`` of its dtype and shape whose
``stype`` names the scheme. A device begins with rounded weights, and what counts of its
reply is how far it has moved them. So a reply is read as the weights before rounding,
moved as far: an algorithm that mixes weights would else write the rounding into the
global model. Small tensors, running statistics and whatever is not floating-point
travel as they are.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.seeding import derive_seed
from flwr_asyncdrop.submodel.types import STATISTICS, State
from flwr_asyncdrop.wire.arrays import check_values, read_sound_array
from flwr_asyncdrop.wire.codec import scheme
from flwr_asyncdrop.wire.coding import Coding
from flwr_asyncdrop.wire.npy import CODED, array_size, read_array, write_array

_SMALLEST = 256  # numbers; a code of fewer would hardly be smaller
_HALF_MAX = torch.finfo(torch.float16).max
_DTYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def is_coded(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Return whether a tensor is coded at all."""
    return (
        dtype.is_floating_point
        and math.prod(shape) >= _SMALLEST
        and name.rpartition(".")[2] not in STATISTICS
    )


def encode_weights(state: State, coding: Coding) -> ArrayRecord:
    """Code weights for a device, to the nearest value of the scheme."""
    record = ArrayRecord()
    down = scheme(coding.down) if coding.down else None
    for name, tensor in state.items():
        if down is None or not is_coded(name, tuple(tensor.shape), tensor.dtype):
            record[name] = write_array(tensor)
        else:
            seed = derive_seed(coding.down_seed, name)
            data = down.encode(_flat(tensor), seed, unbiased=False)
            record[name] = _array(tensor, coding.down, data)
    return record


def decode_weights(record: ArrayRecord, coding: Coding) -> State:
    """Return the weights that `encode_weights` has coded, as their device has them.

    ValueError if an array is of another scheme, or cannot be read.
    """
    state: State = {}
    for name, array in record.items():
        if not array.stype.startswith(CODED):
            state[name] = torch.from_numpy(read_array(array))
            continue
        if array.dtype not in _DTYPES:
            raise ValueError(f"it is of {shown(array.dtype)}, which no code is of")
        values = _decoded(array, coding.down, derive_seed(coding.down_seed, name))
        decoded, dtype = torch.from_numpy(values), _DTYPES[array.dtype]
        if dtype == torch.float16:  # the largest number may have been rounded up
            decoded.clamp_(-_HALF_MAX, _HALF_MAX)
        state[name] = decoded.reshape(array.shape).to(dtype)
    return state


def encode_changes(changes: State, like: State, coding: Coding) -> dict[str, Array]:
    """Code what training has changed; `like` has the weights that were changed.

    `changes` are single precision, and finite. Without feedback the code is unbiased:
    its mean over seeds is the change. With it, the nearest value is taken, and what
    that loses is sent later.
    """
    up, coded = scheme(coding.up), {}
    for name, change in changes.items():
        seed = derive_seed(coding.up_seed, name)
        data = up.encode(_flat(change), seed, unbiased=not coding.feedback)
        coded[name] = _array(like[name], coding.up, data)
    return coded


def read_change(name: str, array: Array, before: Tensor) -> Tensor:
    """Return, in single precision at least, how far an array is from what it was.

    ReplyError as of `read_sound_array`, and for numbers that cannot be coded.
    """
    after = read_sound_array(name, array, tuple(before.shape), before.dtype)
    check_codable(name, after)
    wide = torch.promote_types(before.dtype, torch.float32)
    return after.to(wide) - before.to(wide)


def check_codable(name: str, tensor: Tensor) -> None:
    """Raise ReplyError unless numbers are sound in single precision, as codes are."""
    check_values(name, tensor.float().numpy())


def decode_change(array: Array, name: str, coding: Coding) -> Tensor:
    """Return a change in single precision; ValueError if it cannot be read."""
    values = _decoded(array, coding.up, derive_seed(coding.up_seed, name))
    return torch.from_numpy(values.reshape(array.shape))


def read_trained(name: str, array: Array, sent: Tensor, coding: Coding) -> Tensor:
    """Read what a device has made of a tensor that is coded one way at least.

    The sum of `sent`, the weights before they were coded, and the change of what the
    device got. ReplyError as of `read_sound_array`, and of kind ``"codec"`` for an
    array that is not coded as the task asked for.
    """
    if coding.up:
        change = _read_change(name, array, sent, coding)
    else:
        record = encode_weights({name: sent}, coding)
        change = read_change(name, array, decode_weights(record, coding)[name])
    trained = (sent + change).to(sent.dtype)
    check_codable(name, trained)
    return trained


def _read_change(name: str, array: Array, sent: Tensor, coding: Coding) -> Tensor:
    shape = tuple(sent.shape)
    if not array.stype.startswith(CODED):
        read_change(name, array, sent)
        raise ReplyError(
            "codec",
            f"array {name!r} came back as it is, and the task asked for "
            f"{coding.up!r}: add CodecMod() to the client, "
            "ClientApp(mods=[CodecMod()])",
        )
    wanted, dtype = CODED + coding.up, _name(sent)
    found = array.stype, array.dtype, tuple(array.shape)
    if found != (wanted, dtype, shape):
        raise ReplyError(
            "codec",
            f"array {name!r} came back as {shown(array.stype)}, {shown(array.dtype)} "
            f"of shape {shown(tuple(array.shape))}, instead of {wanted!r}, {dtype} of "
            f"shape {shape}: let CodecMod() code the reply",
        )
    try:
        return decode_change(array, name, coding)
    except ValueError as error:
        raise ReplyError(
            "codec",
            f"array {name!r} is no code of {coding.up!r}: {error}; let CodecMod() "
            "code the reply",
        ) from error


def coded_bytes(
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
    name: str,
) -> int:
    """Return the most bytes that tensors have on the wire with the scheme `name`."""
    used = scheme(name) if name else None
    total = 0
    for tensor, shape in shapes.items():
        dtype = dtypes[tensor]
        if used is not None and is_coded(tensor, shape, dtype):
            total += used.most_bytes(math.prod(shape))
        else:
            total += array_size(shape, dtype)
    return total


def _decoded(array: Array, name: str, seed: int) -> NDArray[np.float32]:
    if array.stype != CODED + name:
        raise ValueError(f"it is {shown(array.stype)}, not {CODED + name!r}")
    return scheme(name).decode(array.data, math.prod(array.shape), seed)


def _array(like: Tensor, name: str, data: bytes) -> Array:
    return Array(_name(like), tuple(like.shape), CODED + name, data)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _flat(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().cpu().float().contiguous().view(-1).numpy()
