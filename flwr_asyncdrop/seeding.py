"""Random numbers derived from what they are for, so that no order of events matters.

Every draw of a run comes from ``(run seed, purpose, numbers)``: the same task gets the
same numbers whichever process draws them and whatever was drawn before. No global
generator is read or advanced: `seed_global_generators` is for what users write.
"""

import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# Whoever has it has the global generators, which all threads of a process share.
_of_all_threads = threading.RLock()


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Derive a seed in ``[0, 2**63)``, which every Flower record can carry.

    `purpose` is e.g. ``"mask"``; `numbers`, each at least 0, tell one use from the
    next, e.g. by device and version.
    """
    entropy = [seed, zlib.crc32(purpose.encode()), *numbers]
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(state[0]) >> 1


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the NumPy generator of one purpose; see `derive_seed`."""
    return np.random.default_rng(derive_seed(seed, purpose, *numbers))


def torch_generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return the PyTorch CPU generator of one purpose; see `derive_seed`."""
    generator = torch.Generator()
    generator.manual_seed(derive_seed(seed, purpose, *numbers))
    return generator


def seed_global_generators(seed: int) -> None:
    """Seed what others may draw from: Python's, NumPy's and PyTorch's generators."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # what ClientApps may draw from
    random.seed(seed)


@contextmanager
def kept_global_generators() -> Iterator[None]:
    """Let the global generators go on afterwards as if nothing had been drawn.

    One thread at a time: another one waits for it here.
    """
    with _of_all_threads, _kept():
        yield


@contextmanager
def _kept() -> Iterator[None]:
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    # A GPU that nothing was drawn on is not to be woken.
    awake = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count() if awake else 0)
    with torch.random.fork_rng(devices=gpus):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002
            random.setstate(of_python)
