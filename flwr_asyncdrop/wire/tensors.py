"""Tensors as an ``ArrayRecord``, and back."""

import torch
from flwr.app import ArrayRecord

from flwr_asyncdrop.submodel.types import State
from flwr_asyncdrop.wire.npy import read_array, write_array


def to_record(state: State) -> ArrayRecord:
    """Serialise tensors for the wire."""
    record = ArrayRecord()
    for name, tensor in state.items():
        record[name] = write_array(tensor)
    return record


def from_record(record: ArrayRecord) -> State:
    """Read tensors that own their memory; ValueError if one cannot be read."""
    return {key: torch.from_numpy(read_array(array)) for key, array in record.items()}


def array_bytes(record: ArrayRecord) -> int:
    """Return the size of the arrays on the wire, in bytes."""
    return sum(len(array.data) for array in record.values())
