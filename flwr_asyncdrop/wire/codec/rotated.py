"""1 or 2 bits a number, after a random rotation."""

from dataclasses import dataclass

import numpy as np

from flwr_asyncdrop.parameters import Range, check_parameters, parameter
from flwr_asyncdrop.wire.codec.bits import join_bits, meanings
from flwr_asyncdrop.wire.codec.eden import LEVELS, quantise, restore
from flwr_asyncdrop.wire.codec.hadamard import Rotation, SignStream
from flwr_asyncdrop.wire.codec.scheme import Floats, Scheme
from flwr_asyncdrop.wire.codec.vectors import chunks, totals

_FLOAT = np.dtype("<f4")
_MEANINGS = {bits: meanings(levels) for bits, levels in LEVELS.items()}


@dataclass(frozen=True)
class Rotated(Scheme):
    """Random rotation, then the optimal quantiser for normal numbers, then a scale.

    This is EDEN (see `eden`), with two rounds of random signs and Hadamard matrices as
    the rotation, of vectors of 128 to 2048 numbers. Whatever the numbers are, the mean
    squared error over the mean square is 0.363 for 1 bit and 0.118 for 2 bits, and
    0.571 and 0.133 when unbiased. Zeros do not stay zeros, unless all of a vector are.

    Tensors of so few numbers that float32 takes no more bytes stay as they are.
    """

    bits: int = parameter(
        2, "bits a number", Range(lambda v: type(v) is int and v in (1, 2), "1 or 2")
    )

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def name(self) -> str:
        """``"q1"`` or ``"q2"``."""
        return f"q{self.bits}"

    @property
    def keeps_zeros(self) -> bool:
        """No: they are rotated with the others."""
        return False

    def payload_sizes(self, count: int) -> range:
        """Return the one size: that of the scales and of the codes."""
        size = min(self._rotated_bytes(count), count * _FLOAT.itemsize)
        return range(size, size + 1)

    def pack(self, values: Floats, seed: int, *, unbiased: bool) -> bytes:
        """Return all scales, then all codes."""
        if not np.isfinite(values).all():
            raise ValueError("values hold NaN or infinity")
        if self._stays(values.size):
            return values.astype(_FLOAT).tobytes()
        signs = SignStream(seed)
        scales, codes = [], []
        for chunk in chunks(values.size):
            vectors = np.zeros(chunk.padded, np.float32)
            vectors[: chunk.count] = values[chunk.start : chunk.stop]
            factors, found = quantise(
                vectors.reshape(chunk.shape),
                Rotation(signs, chunk.shape),
                self.bits,
                chunk.count / chunk.padded,
                unbiased=unbiased,
            )
            scales.append(factors.astype(_FLOAT).tobytes())
            codes.append(join_bits(found.reshape(-1), self.bits).tobytes())
        return b"".join(scales + codes)

    def unpack(self, payload: bytes, count: int, seed: int) -> Floats:
        """Read scales and codes, and rotate back; ValueError for wrong scales."""
        if self._stays(count):
            return _read_finite(payload)
        num_scales, _ = totals(count)
        split = num_scales * _FLOAT.itemsize
        scales = _read_finite(payload[:split])
        if np.signbit(scales).any():
            raise ValueError("a scale is negative")
        codes = np.frombuffer(payload, np.uint8, offset=split)
        values = np.empty(count, np.float32)
        signs = SignStream(seed)
        for chunk in chunks(count):
            split, number = chunk.padded * self.bits // 8, chunk.shape[1]
            levels = _MEANINGS[self.bits][codes[:split]].reshape(chunk.shape)
            rotation = Rotation(signs, chunk.shape)
            vectors = restore(levels, scales[:number], rotation, self.bits)
            values[chunk.start : chunk.stop] = vectors.reshape(-1)[: chunk.count]
            scales, codes = scales[number:], codes[split:]
        return values

    def _stays(self, count: int) -> bool:
        return self._rotated_bytes(count) >= count * _FLOAT.itemsize

    def _rotated_bytes(self, count: int) -> int:
        num_scales, num_codes = totals(count)
        return num_scales * _FLOAT.itemsize + num_codes * self.bits // 8


def _read_finite(data: bytes) -> Floats:
    numbers = np.frombuffer(data, _FLOAT).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("a number or a scale is NaN or infinite")
    return numbers
