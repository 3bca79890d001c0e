"""What of a model does not train: split off, identified by its content, put back."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.types import State, resolved


@dataclass(frozen=True)
class Frozen:
    """The tensors of a model that do not train; none by default.

    Attributes
    ----------
    tensors : dict of str to Tensor
        At full size. Nobody changes them, so that all may share them.
    names : tuple of str
        The names of all tensors of the model, in its order.
    sha256 : str
        The `content_hash` of `tensors`; "" if there are none.
    """

    tensors: State = field(default_factory=dict)
    names: tuple[str, ...] = ()
    sha256: str = ""

    def complete(self, trained: State) -> State:
        """Return the whole model: tensors that train, with those that do not."""
        if not self.tensors:
            return trained
        whole = self.tensors | trained
        return {name: whole[name] for name in self.names}


def split(state: State, frozen: Collection[str]) -> tuple[State, Frozen]:
    """Return the tensors that train, and copies of those that are named `frozen`."""
    if not frozen:
        return state, Frozen()
    trained = {name: tensor for name, tensor in state.items() if name not in frozen}
    kept = {name: state[name].clone() for name in state if name in frozen}
    return trained, Frozen(kept, tuple(state), content_hash(kept))


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = resolved(tensors[name].detach()).cpu().contiguous()
        # One line of JSON says how many bytes follow it: no two contents look alike.
        head = json.dumps([name, str(tensor.dtype), list(tensor.shape)])
        digest.update(f"{head}\n".encode())
        # A single number counts as contiguous whatever its stride is.
        flat = tensor.as_strided((tensor.numel(),), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
