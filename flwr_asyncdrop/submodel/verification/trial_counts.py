"""How many units of each group the trial submodels of a plan keep, and which."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.plan import UnitGroup


def counts_to_keep(groups: Sequence[UnitGroup]) -> list[list[int]]:
    """Return rounds of counts, one a group, that tell groups of one size apart.

    The counts of a group, in all rounds, are the digits of its number among those of
    its size. In the first round, which has all passes, none of them stays whole.
    """
    codes: list[int] = []
    numbers = Counter[int]()
    for group in groups:
        codes.append(numbers[group.size])
        numbers[group.size] += 1
    rounds: list[list[int]] = []
    levels = [mine[:-1] or mine for mine in map(levels_of, groups)]
    while not rounds or any(
        c and len(k) > 1 for c, k in zip(codes, levels, strict=True)
    ):
        rounds.append([k[c % len(k)] for c, k in zip(codes, levels, strict=True)])
        codes = [c // len(k) for c, k in zip(codes, levels, strict=True)]
        levels = [*map(levels_of, groups)]
    return rounds


def some_units(
    size: int, count: int, number: int, generator: torch.Generator
) -> Tensor:
    """Return `count` of so many units, drawn for a round of this number.

    The first and the last unit go first: code that moves units along their axis treats
    them unlike others.
    """
    inner = 1 + torch.randperm(max(size - 2, 0), generator=generator)
    ends = [size - 1, 0] if number % 2 else [0, size - 1]
    return torch.cat([inner, torch.tensor(ends)])[:count].sort().values


def levels_of(group: UnitGroup) -> list[int]:
    """Return odd counts from a quarter of the units on, and all of them."""
    several = min(3, group.size // 2)  # one alone is in any order the same
    smallest = max(group.size // 4, several, group.least) | 1
    return [*range(smallest, group.size, 2), group.size]


def even_part(group: UnitGroup) -> int:
    """Return an even count of at most half of the units, but of 2 and the least."""
    return max(group.size // 4 * 2, min(2, group.size), group.least)
