"""One copy each way, and the very bytes of Flower and NumPy."""

from io import BytesIO

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from flwr.app import Array
from hypothesis import given, settings

from flwr_asyncdrop.npy import read_array, write_array

DTYPES = (np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, max_examples=25)
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
    again = read_array(array)
    assert (again.dtype, again.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(again, values)


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


def saved(values, **options):
    stream = BytesIO()
    np.lib.format.write_array(stream, values, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        saved(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        saved(np.arange(3.0), version=(2, 0)),
        saved(np.arange(3, dtype=">i4")),
        saved(np.arange(3.0)) + b"more",
    ],
    ids=["fortran order", "version 2", "big endian", "trailing bytes"],
)
def test_unusual_arrays_read_as_numpy_reads_them(data):
    array = Array("any", (1,), "numpy.ndarray", data)
    values, reference = read_array(array), np.load(BytesIO(data))
    np.testing.assert_array_equal(values, reference)
    assert values.dtype == reference.dtype


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an array",
        saved(np.arange(3.0))[:-1],
        saved(np.arange(3.0))[:20],
        saved(np.array([None]), allow_pickle=True),
        np.lib.format.magic(1, 0) + b"\x05\x00evil\n",
    ],
)
def test_bytes_that_are_no_numbers_raise_as_numpy_does(data):
    array = Array("any", (1,), "numpy.ndarray", data)
    with pytest.raises((ValueError, EOFError)):
        read_array(array)
    with pytest.raises((ValueError, EOFError)):
        np.load(BytesIO(data))


def test_another_serialisation_is_refused_as_flower_refuses_it():
    with pytest.raises(TypeError, match="Unsupported serialization"):
        read_array(Array("float32", (1,), "other", saved(np.arange(3.0))))
