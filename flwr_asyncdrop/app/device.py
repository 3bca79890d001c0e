"""The processor that the ready app computes on."""

import os
from functools import cache

import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@cache
def best_device() -> torch.device:
    """Return the GPU that this process may use, else the CPU.

    A GPU is asked for the same bits each time. Else cuDNN may choose algorithms for a
    convolution that sum in any order, and so may cuBLAS, e.g. in an LSTM. How PyTorch
    is to be asked: https://docs.pytorch.org/docs/stable/notes/randomness.html.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # It counts from the first call of cuBLAS in this process
    os.environ.setdefault(_CUBLAS, ":4096:8")
    torch.backends.cudnn.deterministic = True
    return torch.device("cuda")
