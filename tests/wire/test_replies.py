"""Every way in which a reply can be wrong has its kind and one line."""

import dataclasses

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.wire.packing import PACKED
from tests.wire.messages import EXPECTED, KEYS, reply, reply_with, state, task

F32 = np.float32


def matrix(*last, dtype=F32):
    return np.array([[1, 2, 3], [4, 5, *last]], dtype)


def test_a_good_reply_is_read():
    read = wire.read_reply(reply(), EXPECTED)
    assert torch.equal(read.arrays["weight"], state()["weight"])
    assert read.arrays["count"] == 7
    assert read.num_examples == 10
    assert wire.flat_metrics(read.metrics) == {"num-examples": 10, "loss": 0.5}
    assert read.num_bytes == wire.array_bytes(wire.to_record(state()))
    assert not read.metrics.array_records


BAD = {
    "the client raised": (
        lambda: Message(Error(3, "out of\nmemory"), reply_to=task()),
        "client-error",
        "code 3: out of memory",
    ),
    "it raised and says nothing": (
        lambda: Message(Error(3, " \n"), reply_to=task()),
        "client-error",
        "no reason given",
    ),
    "no arrays": (
        lambda: Message(RecordDict(), reply_to=task()),
        "records",
        "carries 0 ArrayRecords",
    ),
    "one array too many": (
        lambda: reply_with("extra", matrix(6)),
        "names",
        "differ from those sent in 'extra': return",
    ),
    "arrays missing": (
        lambda: reply(ArrayRecord()),
        "names",
        "differ from those sent in 'bn.running_var' and 2 more",
    ),
    "a list": (
        lambda: reply(ArrayRecord([t.numpy() for t in state().values()])),
        "names",
        "ArrayRecord of a list has numbers for names",
    ),
    "layers that stay on the device": (
        lambda: reply(ArrayRecord({"weight": state()["weight"]})),
        "names",
        "layers that are the device's own have load_personal and save_personal",
    ),
    "records of two models": (
        lambda: Message(
            RecordDict({"a": ArrayRecord(state()), "b": ArrayRecord(state())}),
            reply_to=task(),
        ),
        "records",
        "carries 2 ArrayRecords: .*examples/custom-algorithm",
    ),
    "names of a wrapper": (
        lambda: reply(
            ArrayRecord({f"_orig_mod.{name}": t for name, t in state().items()})
        ),
        "names",
        r"return the state_dict of the model inside of its wrapper, \._orig_mod$",
    ),
    "a name without end": (
        lambda: reply_with("0" * 10**6, matrix(6)),
        "names",
        r"sent in '0+\.\.\.: return",
    ),
    "no numpy bytes": (
        lambda: reply_with("weight", Array("float32", (2, 3), "numpy.ndarray", b"x")),
        "unreadable",
        "'weight' cannot be read: it does not begin",
    ),
    "another serialisation": (
        lambda: reply_with("weight", Array("float32", (2, 3), "pickle", b"x")),
        "unreadable",
        "serialised as 'pickle'",
    ),
    "texts": (
        lambda: reply_with("weight", np.full((2, 3), "text")),
        "unreadable",
        "not that of an array of numbers",
    ),
    "another shape": (
        lambda: reply_with("weight", np.zeros((2, 4), F32)),
        "shape",
        r"'weight' came back with shape \(2, 4\) instead of \(2, 3\)",
    ),
    "wider floats": (
        lambda: reply_with("weight", matrix(6, dtype=np.float64)),
        "dtype",
        "'weight' came back as float64 instead of float32",
    ),
    "integers": (
        lambda: reply_with("weight", matrix(6, dtype=np.int16)),
        "dtype",
        "as int16 instead of float32",
    ),
    "complex numbers": (
        lambda: reply_with("weight", matrix(6, dtype=np.complex64)),
        "dtype",
        "as complex64 instead of float32",
    ),
    "a counter in floats": (
        lambda: reply_with("count", np.array(7.0)),
        "dtype",
        "'count' came back as float64 instead of int64",
    ),
    "NaN": (
        lambda: reply_with("weight", matrix(np.nan)),
        "non-finite",
        "lower the learning rate",
    ),
    "infinity": (
        lambda: reply_with("weight", matrix(-np.inf)),
        "non-finite",
        "NaN, infinity or values beyond 1.84e\\+19",
    ),
    "what would overflow": (
        lambda: reply_with("weight", matrix(2e19)),
        "non-finite",
        "'weight' holds",
    ),
    "a negative variance": (
        lambda: reply_with("bn.running_var", np.array([1, -0.25], F32)),
        "variance",
        "'bn.running_var' holds -0.25",
    ),
    "no number of examples": (
        lambda: reply(metrics={"loss": 1.0}),
        "num-examples",
        "no 'num-examples'",
    ),
    "a list of examples": (
        lambda: reply(metrics={"num-examples": [1] * 1000}),
        "num-examples",
        r"is \[1, 1, .*\.\.\.: it must",
    ),
}


@pytest.mark.parametrize(("message", "kind", "says"), BAD.values(), ids=list(BAD))
def test_a_bad_reply_is_refused_in_one_line(message, kind, says):
    with pytest.raises(ReplyError, match=says) as caught:
        wire.read_reply(message(), EXPECTED)
    assert caught.value.kind == kind
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_of_a_long_traceback_the_end_is_read_and_shown():
    """Flower's simulation engine sends Ray's, whose last line has the cause."""
    calls = "  File '/some/where.py', line 1, in call\n" * 90
    reason = f"<class 'RayTaskError'>\n{calls}Message: 'fitins.parameters'"
    with pytest.raises(ReplyError, match=r"@app\.train") as caught:
        wire.read_reply(Message(Error(2, reason), reply_to=task()), EXPECTED)
    assert "code 2: <class 'RayTaskError'> File" in str(caught.value)
    assert "... " in str(caught.value)
    assert "Message: 'fitins.parameters'; the client uses an API" in str(caught.value)
    assert len(str(caught.value)) < 1300


def test_of_layers_that_a_client_has_kept_the_evaluation_is_told_what_loads_them():
    small, full = torch.nn.Linear(2, 3), torch.nn.Linear(4, 3)
    with pytest.raises(RuntimeError) as raised:
        full.load_state_dict(small.state_dict())
    with pytest.raises(ReplyError, match="load_personal and save_personal"):
        wire.read_evaluation(
            Message(Error(2, str(raised.value)), reply_to=task()), KEYS
        )


@pytest.mark.parametrize(
    "count", [0, -1, 0.5, 2.75, 1001, 1e18, np.inf, -np.inf, np.nan]
)
def test_a_number_of_examples_that_cannot_be(count):
    with pytest.raises(ReplyError, match="from 1 to 1,000") as bad:
        wire.read_reply(reply(metrics={"num-examples": count}), EXPECTED)
    assert ("; raise max-examples if there can be more" in str(bad.value)) == (
        count > 1000
    ), "max-examples is no help to others"
    assert bad.value.kind == "num-examples"
    with pytest.raises(ReplyError, match="from 1 to 1,000"):
        wire.read_evaluation(reply(metrics={"num-examples": count}), KEYS, 1000)


@pytest.mark.parametrize(("count", "read"), [(1, 1), (1000, 1000), (2.0, 2)])
def test_a_number_of_examples_that_can(count, read):
    message = reply(metrics={"num-examples": count})
    assert wire.read_reply(message, EXPECTED).num_examples == read


def test_a_billion_examples_are_enough_unless_told_otherwise():
    assert wire.Expected({}, {}).max_examples == 10**9


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        (torch.float32, "f2"),
        (torch.float32, ">f4"),
        (torch.float64, "f4"),
        (torch.int64, "i4"),
        (torch.complex128, "c8"),
    ],
)
def test_what_loses_nothing_is_widened(sent, returned):
    expected = wire.Expected({"w": (2,)}, {"w": sent})
    record = ArrayRecord({"w": Array(np.array([1, 3], returned))})
    read = wire.read_reply(reply(record), expected).arrays["w"]
    assert read.dtype == sent
    assert read.tolist() == [1, 3]


def test_arrays_of_a_list_are_asked_for_in_their_order():
    expected = wire.Expected({"0": (2,)}, {"0": torch.float32})
    record = ArrayRecord([np.zeros(3, F32)])
    with pytest.raises(ReplyError, match=r"and the order in which they came$"):
        wire.read_reply(reply(record), expected)


def test_half_precision_may_use_all_that_it_has():
    expected = wire.Expected({"w": (1,)}, {"w": torch.float16})
    record = ArrayRecord({"w": Array(np.array([65504], np.float16))})
    assert wire.read_reply(reply(record), expected).arrays["w"].item() == 65504


def test_both_parts_of_a_complex_number_are_looked_at():
    expected = wire.Expected({"w": (1,)}, {"w": torch.complex64})
    record = ArrayRecord({"w": Array(np.array([complex(1, np.inf)], np.complex64))})
    with pytest.raises(ReplyError, match="infinity"):
        wire.read_reply(reply(record), expected)


@pytest.mark.parametrize("variance", [0.0, -0.0, 1e-30, 0.5])
def test_a_variance_may_be_small(variance):
    variances = np.array([variance, 1], F32)
    read = wire.read_reply(reply_with("bn.running_var", variances), EXPECTED)
    assert read.arrays["bn.running_var"].tolist() == variances.tolist()


@pytest.mark.parametrize("value", [1 + 2j, complex(1, np.nan)])
def test_a_complex_scalar(value):
    expected = wire.Expected({"w": ()}, {"w": torch.complex64})
    record = ArrayRecord({"w": Array(np.array(value, np.complex64))})
    if np.isnan(value):
        with pytest.raises(ReplyError, match="NaN"):
            wire.read_reply(reply(record), expected)
    else:
        assert wire.read_reply(reply(record), expected).arrays["w"].item() == value


BESIDE = {
    "up": {"weight": torch.full((2, 3), 2.0)},
    "down": {"count": torch.tensor(3), "weight": torch.full((2, 3), 5.0)},
}
WITH_BESIDE = dataclasses.replace(EXPECTED, extra={n: [*t] for n, t in BESIDE.items()})


def with_beside(names):
    """Return a good reply, with the records of these names before all others."""
    beside = {name: wire.to_record(BESIDE[name]) for name in names}
    return Message(RecordDict({**beside, **reply().content}), reply_to=task())


@pytest.mark.parametrize("names", [("up", "down"), ("down", "up")])
def test_records_beside_the_model_are_read_by_their_names(names):
    message = with_beside(names)
    read = wire.read_reply(message, WITH_BESIDE)
    assert list(read.extra) == ["up", "down"]
    for name, tensors in BESIDE.items():
        assert list(read.extra[name]) == list(tensors)
        assert all(torch.equal(read.extra[name][n], tensors[n]) for n in tensors)
    assert torch.equal(read.arrays["weight"], state()["weight"])
    arrays = wire.records_of(message.content, ArrayRecord).values()
    assert read.num_bytes == sum(map(wire.array_bytes, arrays))


def test_a_record_beside_the_model_that_is_missing_is_named():
    with pytest.raises(ReplyError, match="lacks the record 'down'") as caught:
        wire.read_reply(with_beside(["up"]), WITH_BESIDE)
    assert caught.value.kind == "records"


def test_of_an_evaluation_the_metrics_come_first_and_all_else_with_them():
    config, arrays = ConfigRecord({"a": 1}), wire.to_record(state())
    metrics = MetricRecord({"num-examples": 10})
    records = {"b": config, "c": arrays, "a": metrics}
    read = wire.read_evaluation(Message(RecordDict(records), reply_to=task()), KEYS)
    assert list(read) == ["a", "b", "c"]
    assert (read["a"], read["b"], read["c"]) == (metrics, config, arrays)


class TestUnpackedEvaluation:
    def test_one_that_came_as_one_array_is_told_apart(self):
        message = reply()
        apart = message.content
        message.content = wire.packed(apart)
        found = wire.unpacked_evaluation(message)
        assert wire.is_packed(message.content["arrays"])
        assert found.metadata == message.metadata
        assert found.content == apart

    def test_one_that_did_not_is_itself(self):
        failed = Message(Error(3, "of the client"), reply_to=task())
        broken = reply(ArrayRecord({"packed": Array("uint8", (1,), PACKED, b"x")}))
        for message in (reply(), failed, broken):
            assert wire.unpacked_evaluation(message) is message


class TestInFlowersArrays:
    """What an `aggregate_train` of a user's own gets."""

    def test_a_reply_in_them_is_itself(self):
        message = with_beside(["up", "down"])
        read = wire.read_reply(message, WITH_BESIDE)
        assert wire.in_flowers_arrays(message, read) is message

    def test_one_that_came_packed_is_another_with_all_else(self):
        plain = with_beside(["up", "down"])
        message = Message(wire.packed(plain.content), reply_to=task())
        read = wire.read_reply(message, WITH_BESIDE)
        made = wire.in_flowers_arrays(message, read)
        assert made.metadata == message.metadata
        assert made.content == plain.content
        assert wire.is_packed(message.content["arrays"])


def test_what_is_expected_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EXPECTED.max_examples = 1
