"""The GPUs of this machine, of which a process may be let see one."""

import os
from collections.abc import Sequence

import torch

from flwr_asyncdrop.exceptions import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""CUDA's variable: the GPUs that a process sees, in their order."""

MOST_GPUS = 1024
"""More are a mistake."""


def chosen_gpus(gpus: int | Sequence[str]) -> tuple[str, ...]:
    """Return names for `VISIBLE`: those given, or of the first so many; () for 0.

    ConfigError: it is neither a number nor names, or there are no GPUs.
    """
    if isinstance(gpus, int) and 0 <= gpus <= MOST_GPUS:
        return visible_gpus(gpus) if gpus else ()
    names = gpus if isinstance(gpus, list | tuple) else [""]
    if not all(isinstance(each, str) and each and "," not in each for each in names):
        raise ConfigError(
            f"gpus={gpus!r} must be an integer in [0, {MOST_GPUS}], or a list of names "
            f"as in {VISIBLE}"
        )
    if names:
        visible_gpus()
    return tuple(names)


def visible_gpus(count: int = 0) -> tuple[str, ...]:
    """Return what `VISIBLE` calls the first GPUs that this process sees.

    Parameters
    ----------
    count : int
        How many; 0 for all.

    Raises
    ------
    ConfigError
        There is none, or fewer than that.
    """
    num_there = torch.cuda.device_count()
    if num_there == 0:
        raise ConfigError(
            f"torch {torch.__version__} sees no GPU here, and gpus={count or 'all'}: "
            "leave it out, or see `asyncdrop doctor`"
        )
    if count > num_there:
        raise ConfigError(
            f"gpus={count}, and torch sees {num_there} here: give no more, and see "
            f"{VISIBLE}"
        )
    listed = [name.strip() for name in os.environ.get(VISIBLE, "").split(",")]
    names = listed if any(listed) else map(str, range(num_there))
    return tuple(names)[: count or num_there]


def see_only(gpu: str) -> None:
    """Let this process, which has not used CUDA yet, see one GPU; "" for all."""
    if gpu:
        os.environ[VISIBLE] = gpu
