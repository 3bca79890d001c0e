"""What a run trains on, as short texts that two machines can compare."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.experiment import initial_model, load_data, weights_of

_LENGTH = 16


def fingerprint(settings: Mapping[str, Value]) -> dict[str, str]:
    """Return hashes of a run's data set and initial model, as this machine has them.

    Of the tensors, not of files: another decoder or layout makes a difference only if
    the samples differ. It takes a second for a gigabyte, and what it loads stays loaded
    for training.
    """
    config = RunConfig.parse(settings)
    data = load_data(config)
    tensors = {
        name: getattr(data, name) for name in ("train_x", "train_y", "test_x", "test_y")
    }
    if data.groups is not None:
        tensors["groups"] = data.groups
    return {
        f"data set {config.dataset}": hash_of(tensors),
        f"model {config.model}": hash_of(weights_of(initial_model(config))),
    }


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of tensors: their names, types, shapes and contents."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:_LENGTH]
