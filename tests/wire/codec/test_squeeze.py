"""zstd only where it pays, and nothing of a stranger's frame that is not checked."""

import struct
import threading
import tracemalloc

import numpy as np
import pytest
import zstandard

from flwr_asyncdrop.wire.codec.squeeze import squeeze, unsqueeze

ALIKE = b"all alike " * 100
RANDOM = np.random.default_rng(0).bytes(1000)


def exactly(size):
    return range(size, size + 1)


def frame(content, **options):
    return zstandard.ZstdCompressor(level=1, **options).compress(content)


def test_what_zstd_makes_shorter_is_a_frame():
    data = squeeze(ALIKE)
    assert data == b"\1" + frame(ALIKE)
    assert len(data) < 100
    assert unsqueeze(data, exactly(1000)) == ALIKE


@pytest.mark.parametrize("payload", [b"", b"x", b"short", RANDOM])
def test_what_it_does_not_stays_with_a_byte_before_it(payload):
    assert squeeze(payload) == b"\0" + payload
    assert unsqueeze(b"\0" + payload, exactly(len(payload))) == payload


def test_any_of_some_sizes():
    assert unsqueeze(squeeze(ALIKE), range(900, 1100)) == ALIKE
    assert unsqueeze(b"\0ab", range(2, 9)) == b"ab"
    with pytest.raises(ValueError, match="has 1000 bytes instead of 1001 to 1099"):
        unsqueeze(squeeze(ALIKE), range(1001, 1100))


SKIPPABLE = struct.pack("<II", 0x184D2A50, 1000) + b"x" * 1000
DICTIONARY = zstandard.ZstdCompressionDict(ALIKE * 3, zstandard.DICT_TYPE_RAWCONTENT)
TRAINED = zstandard.train_dictionary(
    512, [bytes([n, n + 1, 7 * n % 256]) * 9 + ALIKE[n : n + 50] for n in range(250)]
)
REFUSED = {
    "nothing": (b"", "first byte"),
    "another flag": (b"\2" + frame(ALIKE), "first byte"),
    "too short": (b"\0" + ALIKE[:-1], "has 999 bytes instead of 1000"),
    "too long": (b"\0" + ALIKE + b"x", "has 1001 bytes instead of 1000"),
    "no frame": (b"\1" + ALIKE, "no zstd frame"),
    "a frame without its magic": (b"\1" + frame(ALIKE)[4:], "no zstd frame"),
    "half a header": (b"\1" + frame(ALIKE)[:5], "header"),
    "half a frame": (b"\1" + frame(ALIKE)[:-4], "damaged"),
    "a skippable frame": (b"\1" + SKIPPABLE, "no zstd frame"),
    "a skippable frame before it": (b"\1" + SKIPPABLE + frame(ALIKE), "no zstd frame"),
    "a skippable frame behind it": (b"\1" + frame(ALIKE) + SKIPPABLE[:40], "damaged"),
    "two frames": (b"\1" + frame(ALIKE) * 2, "damaged"),
    "two halves": (b"\1" + frame(ALIKE[:500]) * 2, "has 500 bytes"),
    "a byte behind it": (b"\1" + frame(ALIKE) + b"\0", "damaged"),
    "a checksum": (b"\1" + frame(ALIKE, write_checksum=True), "checksum"),
    "no size": (b"\1" + frame(ALIKE, write_content_size=False), "payload has"),
    "a dictionary": (b"\1" + frame(ALIKE, dict_data=TRAINED), "dictionary"),
    "a hidden dictionary": (
        b"\1" + frame(ALIKE, dict_data=DICTIONARY, write_dict_id=False),
        "damaged",
    ),
    "a frame that is longer": (b"\1" + frame(RANDOM), "no shorter"),
    "other content": (b"\1" + frame(ALIKE + b"x"), "has 1001 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_squeeze_would_not_write_is_refused(case):
    data, reason = REFUSED[case]
    with pytest.raises(ValueError, match=reason):
        unsqueeze(data, exactly(1000))


def test_a_bomb_costs_no_memory():
    bomb = b"\1" + frame(bytes(2**28))
    small = b"\1" + frame(bytes(2**28), write_content_size=False)
    for data in (bomb, small):
        tracemalloc.start()
        with pytest.raises(ValueError, match="payload has"):
            unsqueeze(data, exactly(1000))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000


def test_a_frame_with_more_in_it_than_it_says_is_refused():
    honest = bytearray(frame(bytes(2**20)))
    # Magic, a byte of flags, then a size of four bytes.
    size = honest.index(struct.pack("<I", 2**20))
    honest[size : size + 4] = struct.pack("<I", 70_000)
    with pytest.raises(ValueError, match="damaged"):
        unsqueeze(b"\1" + bytes(honest), exactly(70_000))


def test_threads_do_not_disturb_one_another():
    payloads = [np.random.default_rng(n).bytes(2000) * 20 for n in range(8)]
    wrong = set()

    def work(payload):
        for _ in range(100):
            if unsqueeze(squeeze(payload), exactly(len(payload))) != payload:
                wrong.add(payload)

    threads = [threading.Thread(target=work, args=(each,)) for each in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
