"""One copy at the most, and the very bytes of Flower and NumPy."""

import tracemalloc
import warnings
from contextlib import suppress
from io import BytesIO

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.wire.npy import (
    array_size,
    copy_of_record,
    read_array,
    to_record,
    view_array,
    write_array,
)
from tests.nightly import examples

DTYPES = (np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, max_examples=examples(25))
@given(shape=SHAPES)
def test_the_bytes_are_flowers_own_and_come_back(dtype, shape):
    values = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    array = write_array(torch.from_numpy(values))
    reference = Array(values)
    assert (array.dtype, array.shape, array.stype, array.data) == (
        reference.dtype,
        reference.shape,
        reference.stype,
        reference.data,
    )
    assert array_size(shape, torch.from_numpy(values).dtype) == len(array.data)
    again = read_array(array)
    assert (again.dtype, again.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(again, values)


def lies_on(values, array):
    return np.shares_memory(values, np.frombuffer(array.data, np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, max_examples=examples(25))
@given(shape=SHAPES)
def test_a_view_is_what_is_read_on_the_bytes_themselves(dtype, shape):
    values = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    array = write_array(torch.from_numpy(values))
    view = view_array(array)
    assert (view.dtype, view.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(view, read_array(array))
    assert lies_on(view, array) == bool(values.size)
    assert view.flags.c_contiguous


def saved(values, **options):
    stream = BytesIO()
    np.lib.format.write_array(stream, values, **options)
    return stream.getvalue()


def later(values, spaces):
    """Return what `saved` does, with numbers that begin so many bytes later."""
    data = saved(values)
    size = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + size - 1] + b" " * spaces + b"\n"
    length = len(header).to_bytes(2, "little")
    return data[:8] + length + header + data[10 + size :]


@pytest.mark.parametrize(
    "data",
    [
        saved(np.arange(6.0).astype(">f8")),
        saved(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        later(np.arange(6.0), spaces=1),
        saved(np.zeros((0, 4))),
    ],
    ids=["byte order", "columns first", "not aligned", "empty"],
)
def test_what_cannot_be_read_where_it_is_is_copied(data):
    array = Array("any", (1,), "numpy.ndarray", data)
    view = view_array(array)
    assert not lies_on(view, array)
    assert view.dtype.isnative
    assert view.flags.c_contiguous
    assert view.flags.aligned
    np.testing.assert_array_equal(view, read_array(array))


def test_a_view_has_the_bytes_to_itself():
    view = view_array(write_array(torch.arange(1000.0)))  # nobody else has the array
    np.testing.assert_array_equal(view, np.arange(1000.0))


def test_a_copy_of_a_record_is_its_own_on_the_same_bytes():
    record = to_record({"b": torch.ones(3), "a": torch.zeros(2, 2)})
    copied = copy_of_record(record)
    assert copied == ArrayRecord(dict(record))
    assert list(copied) == ["b", "a"]
    assert all(copied[name].data is record[name].data for name in record)
    assert copied.object_id == record.object_id
    copied["b"].data = b"changed"
    copied["c"] = write_array(torch.ones(1))
    del copied["a"]
    assert list(record) == ["b", "a"]
    assert read_array(record["b"]).tolist() == [1, 1, 1]
    assert copied.object_id != record.object_id


def test_what_is_not_contiguous_is_written_too():
    tensor = torch.arange(6.0).reshape(2, 3).t()
    np.testing.assert_array_equal(read_array(write_array(tensor)), tensor.numpy())


def test_parameters_are_written_without_their_gradients():
    weight = torch.nn.Parameter(torch.ones(2))
    np.testing.assert_array_equal(read_array(write_array(weight)), np.ones(2))


def test_an_array_that_was_read_can_be_written_to():
    array = Array(np.zeros(3, np.float32))
    read_array(array)[:] = 1
    np.testing.assert_array_equal(read_array(array), np.zeros(3))


@pytest.mark.parametrize(
    "data",
    [
        saved(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        saved(np.arange(3.0), version=(2, 0)),
        saved(np.arange(3.0), version=(3, 0)),
        saved(np.arange(3, dtype=">i4")),
        saved(np.arange(3.0)).replace(b"(3,), }", b"(3, ),}"),
    ],
    ids=["fortran order", "version 2", "version 3", "big endian", "other spaces"],
)
def test_unusual_arrays_read_as_numpy_reads_them(data):
    array = Array("any", (1,), "numpy.ndarray", data)
    values, reference = read_array(array), np.load(BytesIO(data))
    np.testing.assert_array_equal(values, reference)
    assert values.dtype == reference.dtype.newbyteorder("=")
    assert values.flags.c_contiguous
    assert values.flags.writeable


def with_header(text, numbers=b""):
    header = text.encode() + b"\n"
    length = len(header).to_bytes(2, "little")
    return np.lib.format.magic(1, 0) + length + header + numbers


def header_of(descr="'<f8'", shape="(1,)"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def test_headers_that_the_tests_write_would_be_read():
    array = Array("any", (1,), "numpy.ndarray", with_header(header_of(), b"\0" * 8))
    assert read_array(array).tolist() == [0.0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an array",
        saved(np.arange(3.0))[:-1],
        saved(np.arange(3.0))[:20],
        saved(np.arange(3.0)) + b"more",
        saved(np.array([None]), allow_pickle=True),
        saved(np.zeros(1, [("a", "f4")])),
        saved(np.zeros(1, "M8[s]")),
        saved(np.zeros(1, np.longdouble)),
        np.lib.format.magic(9, 0) + saved(np.arange(3.0))[8:],
        np.lib.format.magic(1, 0) + b"\x05\x00evil\n",
        with_header(header_of("'|O'"), b"\0" * 8),
        with_header(header_of("'<f3'"), b"\0" * 3),
        with_header(header_of(shape="(-1,)"), b"\0" * 8),
        with_header(header_of(shape="(999999999999999999,)"), b"\0" * 8),
        with_header(header_of(shape="(1,)" + " " * 2000), b"\0" * 8),
        with_header(header_of(shape="(True,)"), b"\0" * 8),
        with_header(header_of(shape=f"(0, {2**64})")),
        with_header(header_of("'f4,f4'"), b"\0" * 8),
        with_header(header_of("('<f4', (2,))"), b"\0" * 8),
        with_header(header_of(shape="[" * 400 + "]" * 400)),
        with_header(header_of() + "\n" + "x", b"\0" * 8),
        with_header("-" * 900 + "1"),
        with_header("__import__('os').abort()"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(data):
    array = Array("any", (1,), "numpy.ndarray", data)
    with pytest.raises(ValueError, match=r"^it"):
        read_array(array)


@given(st.data())
@settings(deadline=None, max_examples=examples(200))
def test_whatever_the_header_is_it_reads_or_is_refused_with_a_value_error(draw):
    data = bytearray(with_header(header_of(), b"\0" * 8))
    for place in draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=4)):
        data[place] = draw.draw(st.integers(0, 255))
    array = Array("any", (1,), "numpy.ndarray", bytes(data))
    with warnings.catch_warnings(), suppress(ValueError):
        warnings.simplefilter("ignore")  # NumPy's, of headers from Python 2
        assert read_array(array).nbytes <= len(data)


def test_a_size_that_the_bytes_do_not_have_is_refused_before_it_is_allocated():
    data = with_header(header_of(shape=f"({2**34},)"), b"\0" * 8)
    tracemalloc.start()
    with pytest.raises(ValueError, match="it has 8 bytes of numbers"):
        read_array(Array("any", (1,), "numpy.ndarray", data))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_another_serialisation_is_refused():
    with pytest.raises(ValueError, match="it is serialised as 'other'"):
        read_array(Array("float32", (1,), "other", saved(np.arange(3.0))))
