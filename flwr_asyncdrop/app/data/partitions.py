"""Who holds which samples: pure functions from labels to index arrays.

Each takes a generator, its only source of chance, and returns the samples of every
device, ascending. None is empty. Counts are at least 1, which the run-config checks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from flwr_asyncdrop.exceptions import DataError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Halves:
    """A random half of a pool for each device, in a bit for each sample of the pool.

    A large fleet would hold many times the indices of all samples.
    """

    pools: Sequence[Indices]
    pool_of: Sequence[int]
    """By device: the number of its pool."""
    bits: Sequence[npt.NDArray[np.uint8]]

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self.bits)

    def __getitem__(self, device: int) -> Indices:
        """Return the samples of a device, ascending."""
        pool = self.pools[self.pool_of[device]]
        return np.sort(pool[np.unpackbits(self.bits[device], count=len(pool)) == 1])

    def __iter__(self) -> Iterator[Indices]:
        """Yield the samples of each device."""
        return map(self.__getitem__, range(len(self)))

    def among(self, samples: Indices) -> Self:
        """Return the same halves, of samples that stand at those places."""
        return replace(self, pools=[samples[pool] for pool in self.pools])


def speed_level(device: int, num_devices: int, num_levels: int) -> int:
    """Tell a device's speed level; level 0 is the fastest.

    Devices are numbered from fast to slow. With fewer devices than levels, each has a
    level of its own.
    """
    return device * min(num_levels, num_devices) // num_devices


def by_speed_level(
    labels: npt.ArrayLike,
    num_devices: int,
    num_levels: int,
    *,
    generator: np.random.Generator,
    shards_per_level: int = 2,
) -> Halves:
    """Deal samples out so that devices of one speed share a bias of labels.

    The non-iid split of the paper's experiments: each device has a random half of the
    pool that `level_pools` gives its `speed_level`.
    """
    levels = min(num_levels, num_devices)
    pools = level_pools(
        labels, levels, generator=generator, shards_per_level=shards_per_level
    )
    pool_of = [
        speed_level(device, num_devices, levels) for device in range(num_devices)
    ]
    bits = [_random_half(len(pools[number]), generator) for number in pool_of]
    return Halves(pools, pool_of, bits)


def level_pools(
    labels: npt.ArrayLike,
    num_levels: int,
    *,
    generator: np.random.Generator,
    shards_per_level: int = 2,
) -> list[Indices]:
    """Sort samples by label, cut them in shards, and deal the shards to levels.

    The shards are as equal as can be, and dealt at random. With fewer samples than
    shards, there are fewer shards a level. The pools are disjoint, and together all
    samples.
    """
    # Stable, so that the outcome does not depend on the sorting algorithm.
    order = np.argsort(np.asarray(labels), kind="stable")
    check_enough(len(order), num_levels, "speed levels")
    num_shards = num_levels * min(shards_per_level, len(order) // num_levels)
    shards = np.array_split(order, num_shards)
    hands = generator.permutation(num_shards).reshape(num_levels, -1)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]


def iid(
    num_samples: int, num_devices: int, *, generator: np.random.Generator
) -> list[Indices]:
    """Deal samples out evenly and at random: every device sees every label."""
    check_enough(num_samples, num_devices, "devices")
    hands = np.array_split(generator.permutation(num_samples), num_devices)
    return [np.sort(hand) for hand in hands]


def dirichlet(
    labels: npt.ArrayLike,
    num_devices: int,
    concentration: float,
    *,
    generator: np.random.Generator,
) -> list[Indices]:
    """Deal samples out so that every device has a mix of labels of its own.

    After Hsu, Qi and Brown (2019): a device's mix is drawn from Dir(alpha p), with p
    the shares of the labels in all samples and alpha the `concentration`, and its
    samples follow the mix, without replacement. All devices have as many samples;
    labels that are used up are left out, so the last devices take what is left.
    """
    _, kinds, totals = np.unique(labels, return_inverse=True, return_counts=True)
    check_enough(len(kinds), num_devices, "devices")
    pools = [
        generator.permutation(np.flatnonzero(kinds == kind))
        for kind in range(len(totals))
    ]
    parts, used = [], np.zeros_like(totals)
    for hand in np.array_split(np.arange(len(kinds)), num_devices):
        mix = generator.dirichlet(concentration * totals / len(kinds))
        taken = _draw_counts(len(hand), mix, totals - used, generator)
        chosen = [
            pool[start : start + count]
            for pool, start, count in zip(pools, used, taken, strict=True)
        ]
        parts.append(np.sort(np.concatenate(chosen)))
        used += taken
    return parts


def _draw_counts(
    size: int,
    mix: npt.NDArray[np.float64],
    left: Indices,
    generator: np.random.Generator,
) -> Indices:
    """Draw how many samples of each label to take, never more than are left."""
    taken = np.zeros_like(left)
    while (wanted := size - taken.sum()) > 0:
        available = left - taken
        shares = np.where(available > 0, mix, 0.0)
        if not shares.sum() > 0:  # all that the mix asks for is used up
            shares = available.astype(np.float64)
        drawn = generator.multinomial(wanted, shares / shares.sum())
        taken += np.minimum(drawn, available)
    return taken


def _random_half(
    pool_size: int, generator: np.random.Generator
) -> npt.NDArray[np.uint8]:
    # Rounded up, so that the only sample of a pool is not lost.
    size = (pool_size + 1) // 2
    taken = np.zeros(pool_size, dtype=bool)
    taken[generator.choice(pool_size, size, replace=False, shuffle=False)] = True
    return np.packbits(taken)


def check_enough(num_samples: int, num_shares: int, shares: str) -> None:
    """Raise DataError if not every share can have a sample."""
    if num_samples < num_shares:
        raise DataError(
            f"{num_samples} training samples are too few for {num_shares} {shares}; "
            f"use fewer {shares} or a larger data set"
        )
