"""zstd around a payload, where that is smaller, and its inverse within bounds.

The first byte says whether the rest is the payload or one zstd frame of it.
"""

from threading import local

import zstandard

OVERHEAD = 1
"""Bytes around a payload that zstd does not make smaller."""

_PLAIN, _FRAME = b"\0", b"\1"
# Codes have few repetitions: nearly all gain is the entropy coder's, which every level
# above 0 has.
_LEVEL = 1
_MAGIC = zstandard.FRAME_HEADER  # a skippable frame has another one


class _Coders(local):
    """A thread's own compressor and decompressor: they serve one call at a time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(
            level=_LEVEL, write_content_size=True, write_checksum=False
        )
        self.decompressor = zstandard.ZstdDecompressor()


_coders = _Coders()


def squeeze(payload: bytes) -> bytes:
    """Return the payload, or a zstd frame of it, whichever is shorter."""
    frame = _coders.compressor.compress(payload)
    if len(frame) < len(payload):
        return _FRAME + frame
    return _PLAIN + payload


def unsqueeze(data: bytes, sizes: range) -> bytes:
    """Return the payload, whose size must be one of `sizes`.

    What a frame says of itself is checked before any memory is spent on its content.
    ValueError for all that `squeeze` would not have written of such a payload.
    """
    flag, body = data[:1], data[1:]
    if flag == _PLAIN:
        _check_size(len(body), sizes)
        return body
    if flag != _FRAME:
        raise ValueError(f"the first byte is {flag!r}, not 0 or 1")
    if not body.startswith(_MAGIC):
        raise ValueError("it is no zstd frame")
    try:
        frame = zstandard.get_frame_parameters(body)
    except zstandard.ZstdError as error:
        raise ValueError(f"the zstd frame has no sound header: {error}") from error
    if frame.dict_id or frame.has_checksum:
        raise ValueError("the zstd frame needs a dictionary or has a checksum")
    _check_size(frame.content_size, sizes)
    if len(body) >= frame.content_size:
        raise ValueError("the zstd frame is no shorter than its content")
    try:
        payload = _coders.decompressor.decompress(
            body, max_output_size=frame.content_size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise ValueError(f"the zstd frame is damaged: {error}") from error
    _check_size(len(payload), sizes)
    return payload


def _check_size(size: int, sizes: range) -> None:
    if size not in sizes:
        wanted = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise ValueError(f"the payload has {size} bytes instead of {wanted}")
