"""Random numbers derived from what they are for, so that no order of events matters.

Every draw of a run comes from ``(run seed, purpose, numbers)``: the same task gets the
same numbers whichever process draws them and whatever was drawn before. No global
generator is read or advanced.
"""

import zlib

import numpy as np
import torch


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
