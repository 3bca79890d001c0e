"""Random numbers derived from what they are for, so that no order of events matters.

Every draw of a run comes from ``(run seed, purpose, numbers)``: the same task gets the
same numbers whichever process draws them and whatever was drawn before. No global
generator is read or advanced.
"""

import zlib

import numpy as np
import torch


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Derive the seed of one purpose from the seed of the run.

    Parameters
    ----------
    seed : int
        Seed of the run, at least 0.
    purpose : str
        What the numbers are for, e.g. ``"mask"``.
    *numbers : int
        What tells one use from the next, e.g. device and version; each at least 0.

    Returns
    -------
    int
        A seed in ``[0, 2**63)``, the range that every Flower record can carry.
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
