import pickle
import socket
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flwr_asyncdrop.simulation.transport import (
    READY,
    Notice,
    Slot,
    decode,
    encode,
    read_failure,
    send_failure,
)


def record(*sizes: int) -> RecordDict:
    arrays = {f"a{n}": Array(np.ones(size, np.uint8)) for n, size in enumerate(sizes)}
    return RecordDict({"arrays": ArrayRecord(arrays), "c": ConfigRecord({"k": b"v"})})


def test_array_bytes_stay_out_of_the_stream() -> None:
    value = record(100_000, 50_000)
    stream, *parts = encode(value)
    assert stream.nbytes < 1000
    assert [part.obj for part in parts] == [
        array.data for array in value["arrays"].values()
    ]
    assert decode([stream, *parts]) == value


def test_encoding_copies_no_array_bytes() -> None:
    value = record(1_000_000)
    tracemalloc.start()
    parts = encode(value)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(part.nbytes for part in parts) > 1_000_000
    assert peak < 100_000


def test_slot_holds_one_object_after_another() -> None:
    slot = Slot.make()
    values = [record(10), record(300_000, 0, 7), None, record(), record(2_000_000)]
    for value in values:
        assert slot.read(slot.write(value)) == value
    slot.close()


def test_what_is_read_outlives_the_slots_next_object() -> None:
    slot = Slot.make()
    kept = slot.read(slot.write(record(5000)))
    slot.write(RecordDict({"arrays": ArrayRecord([np.zeros(9000, np.uint8)])}))
    slot.close()
    assert kept == record(5000)


def test_object_that_does_not_pickle_leaves_the_slot_as_it_was() -> None:
    slot = Slot.make()
    size = slot.write("before")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        slot.write(lambda: None)
    assert slot.read(size) == "before"
    slot.close()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("no file 'naïve ✓.csv'", "no file 'naïve ✓.csv'"),
        # A name that is no UTF-8 has these in Python.
        ("no file 'b\udcffx.csv'", r"no file 'b\udcffx.csv'"),
        ("", ""),
    ],
)
def test_a_text_comes_whole_whatever_is_in_it(text: str, read: str) -> None:
    here, there = socket.socketpair()
    with here, there:
        send_failure(there, text)
        READY.send(there)
        notice = Notice.receive(here)
        assert notice is not None
        assert read_failure(here, notice) == read
        # Nothing is left of it in front of the next notice, which announces no text.
        assert Notice.receive(here) == READY
        assert read_failure(here, READY) is None
