"""Bytes that encode did not write, most of them nearly right, and what is expected.

``python -m tests.wire.codec.mutations --count 100000 --seed 1`` tries so many.
"""

import argparse
import random
import tracemalloc
from collections import Counter

import numpy as np

from flwr_asyncdrop.wire.codec.squeeze import squeeze, unsqueeze
from tests.wire.codec.samples import SCHEMES, SPECS, heavy, normal, one_hot

COUNTS = (1, 9, 64, 65, 300, 2500)


def originals(chooser):
    """Yield encoded tensors without end: scheme, count, seed and bytes."""
    while True:
        scheme = SCHEMES[chooser.choice(SPECS)]
        count, seed = chooser.choice(COUNTS), chooser.randrange(5)
        numbers = chooser.choice([normal, heavy, one_hot])
        values = numbers(count, seed) if numbers is not one_hot else numbers(count)
        data = scheme.encode(values, seed, unbiased=chooser.random() < 0.5)
        yield scheme, count, seed, data


def flip(data, chooser):
    for _ in range(chooser.choice([1, 1, 2, 5])):
        data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)


def overwrite(data, chooser):
    start = chooser.randrange(len(data))
    size = chooser.choice([1, 2, 4, 16])
    byte = chooser.choice([0, 1, 127, 128, 255, chooser.randrange(256)])
    data[start : start + size] = bytes([byte]) * min(size, len(data) - start)


def cut(data, chooser):
    start = chooser.randrange(len(data))
    del data[start : start + chooser.choice([1, 2, 8, len(data)])]


def insert(data, chooser):
    start = chooser.randrange(len(data) + 1)
    data[start:start] = chooser.randbytes(chooser.choice([1, 2, 8, 100]))


def move(data, chooser):
    start, other = chooser.randrange(len(data)), chooser.randrange(len(data))
    piece = data[start : start + 8]
    data[other : other + len(piece)] = piece


def replace(data, chooser):
    data[:] = data[:1] + chooser.randbytes(len(data) - 1)


KINDS = (flip, flip, overwrite, overwrite, cut, insert, move, replace)


def mutated(data, sizes, chooser):
    """Return the bytes changed, or the payload changed and made bytes again."""
    inside = chooser.random() < 0.6
    changed = bytearray(unsqueeze(data, sizes) if inside else data)
    for _ in range(chooser.choice([1, 1, 1, 3])):
        if changed:
            chooser.choice(KINDS)(changed, chooser)
    return squeeze(bytes(changed)) if inside else bytes(changed)


def check(scheme, data, count, seed):
    """Decode; return why it was refused, or "": then the numbers are sound."""
    try:
        values = scheme.decode(data, count, seed)
    except ValueError as error:
        return str(error)
    assert values.shape == (count,)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    return ""


def fuzz(tries, seed):
    """Return how often each reason was given; AssertionError for a fault."""
    chooser, reasons = random.Random(seed), Counter()
    makers = originals(chooser)
    while sum(reasons.values()) < tries:
        scheme, count, number, data = next(makers)
        assert check(scheme, data, count, number) == ""
        for _ in range(50):
            wrong = mutated(data, scheme.payload_sizes(count), chooser)
            try:
                reasons[check(scheme, wrong, count, number)] += 1
            except BaseException:
                print(scheme.name, count, number, wrong.hex())
                raise
    return reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tracemalloc.start()
    reasons = fuzz(arguments.count, arguments.seed)
    _, peak = tracemalloc.get_traced_memory()
    for reason, times in reasons.most_common(60):
        print(f"{times:8d} {reason or 'decoded to finite numbers'}")
    print(f"{sum(reasons.values())} tried, peak {peak / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
