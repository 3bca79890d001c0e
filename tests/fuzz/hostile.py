"""What a hostile or broken client could send, as hypothesis strategies."""

import pickle
from io import BytesIO

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_asyncdrop import wire
from flwr_asyncdrop.flower_internals.identity import assume_identity

assume_identity(run_id=1)

TASK = wire.make_task(
    ArrayRecord(), {}, wire.TaskConfig(1, 0), node_id=5, keys=wire.RecordKeys()
)
unpickled: list[str] = []


def note_unpickling() -> None:
    unpickled.append("a stranger's pickle was loaded")


class Bomb:
    """Goes off in the process that unpickles it."""

    def __reduce__(self):
        return note_unpickling, ()


def saved(values, version=None):
    stream = BytesIO()
    np.lib.format.write_array(stream, values, version, allow_pickle=True)
    return stream.getvalue()


def npy(header, numbers=b""):
    """Bytes that begin like an array's, with any header."""
    length = len(header).to_bytes(4, "little")
    return np.lib.format.magic(2, 0) + length + header + numbers


def archive(values):
    stream = BytesIO()
    np.savez(stream, values)
    return stream.getvalue()


PICKLES = [
    saved(np.array([Bomb()], object)),
    saved(np.array([[Bomb()] * 3] * 2, object), (3, 0)),
    archive(np.array([Bomb()], object)),
    pickle.dumps(Bomb()),
    npy(
        b"{'descr': '|O', 'fortran_order': False, 'shape': (), }", pickle.dumps(Bomb())
    ),
]

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    st.sampled_from([np.dtype(name) for name in ("f4", ">f4", "i8", "c8", "f4,i2")]),
)
arrays = hnp.arrays(dtypes, shapes)
versions = st.sampled_from([None, (2, 0), (3, 0)])
headers = st.one_of(
    st.binary(max_size=300),
    st.builds(
        "{{'descr': {!r}, 'fortran_order': {}, 'shape': {}, }}{}".format,
        st.sampled_from(["<f4", "|O", "<f16", "<M8[s]", "f4,f4", "<U9"]) | st.text(),
        st.sampled_from([True, False, "evil()", 2]),
        st.tuples(st.integers()) | st.lists(st.integers(0, 10**30)).map(tuple),
        st.integers(0, 5000).map(lambda count: " " * count),
    ).map(lambda text: text.encode("utf8", "surrogatepass")),
)


@st.composite
def mutated(draw, originals):
    """Bytes of an array with some replaced, cut off, or put in."""
    data = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 3))
        data[start:end] = draw(st.binary(max_size=3))
    return bytes(data)


def array_bytes(good):
    """Bytes for one array, most of them nearly those of `good`."""
    return st.one_of(
        mutated(st.just(saved(good))),
        st.builds(saved, arrays, versions),
        st.builds(saved, hnp.arrays(good.dtype, good.shape)),
        st.builds(saved, hnp.arrays(hnp.scalar_dtypes(), good.shape)),
        st.builds(npy, headers, st.binary(max_size=64)),
        st.sampled_from([*PICKLES, archive(good)]),
        st.binary(max_size=200),
    )


def array(good):
    """An ``Array``, perhaps with a lie beside its bytes."""
    return st.builds(
        Array,
        st.just(str(good.dtype)) | st.text(max_size=9),
        st.just(good.shape) | st.lists(st.integers(), max_size=5).map(tuple),
        st.sampled_from([*["numpy.ndarray"] * 9, "", "pickle", *UGLY]),
        array_bytes(good),
    )


metric = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.lists(st.floats(), max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
)
# What moves a terminal's cursor, turns the direction of text, or cannot be encoded.
UGLY = ["\n" * 5000, "\x1b[2Jgone", "a\r\nb\0", "\u202egnp.exe", "\ud800", "x" * 10**6]
texts = st.text(st.characters(), max_size=20) | st.sampled_from(UGLY)
names = texts
metrics = st.builds(
    MetricRecord,
    st.just({"num-examples": 3})
    | st.just({"num-examples": 10**9, "loss": [0.5]})
    | st.just({"num-examples": 0.5, "": 2})
    | st.dictionaries(st.just("num-examples") | names, metric, max_size=3),
)


@st.composite
def array_records(draw, good):
    """The arrays of `good`, some of them replaced, left out, or added to."""
    record = ArrayRecord({name: Array(values) for name, values in good.items()})
    for name in draw(st.lists(st.sampled_from(sorted(good)), max_size=2)):
        record[name] = draw(array(good[name]))
    if draw(st.integers(0, 9)) == 9:
        record.pop(draw(st.sampled_from(sorted(good))))
    if draw(st.integers(0, 9)) == 9:
        record[draw(names)] = draw(array(next(iter(good.values()))))
    return record


@st.composite
def replies(draw, good):
    """A reply to `TASK`, hostile in any way."""
    if draw(st.integers(0, 19)) == 19:
        error = Error(draw(st.integers(0, 2**31)), draw(st.none() | texts))
        return Message(error, reply_to=TASK)
    content = RecordDict()
    for number in range(draw(st.sampled_from([*[1] * 18, 0, 2]))):
        content[f"arrays-{number}"] = draw(array_records(good))
    for number in range(draw(st.sampled_from([*[1] * 18, 0, 2]))):
        content[f"metrics-{number}"] = draw(metrics)
    if draw(st.booleans()):
        content["config"] = ConfigRecord({"arrays": b"bytes", "num-examples": 5})
    return Message(content, reply_to=TASK)
