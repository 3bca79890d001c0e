"""What a reply may have at the most, and that more of it costs no work."""

import math
import time

import numpy as np
import pytest
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
from tests.wire.messages import EXPECTED, KEYS, reply, reply_with, state, task

HUGE = 10**7
MANY = 10**4


def records(**more):
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": wire.to_record(state()), "metrics": metrics})
    content.update(more)
    return Message(content, reply_to=task())


def metrics(values):
    return records(metrics=MetricRecord({"num-examples": 1, **values}))


def named(name):
    arrays = wire.to_record(state())
    arrays[name] = arrays["weight"]
    return reply(arrays)


def shaped(shape):
    header = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    )
    data = np.lib.format.magic(2, 0) + len(header).to_bytes(4, "little") + header
    return reply_with("weight", Array("float32", (2, 3), "numpy.ndarray", data))


ABSURD = {
    "a reason of megabytes": (
        lambda: Message(Error(3, "\x1b[2J" + "x" * HUGE), reply_to=task()),
        "client-error",
    ),
    "a reason of line feeds": (
        lambda: Message(Error(3, "\n" * HUGE), reply_to=task()),
        "client-error",
    ),
    "records without end": (
        lambda: records(**{str(n): ConfigRecord() for n in range(MANY)}),
        "records",
    ),
    "array records without end": (
        lambda: records(**{str(n): ArrayRecord() for n in range(MANY)}),
        "records",
    ),
    "metrics without end": (
        lambda: metrics({str(n): 1.0 for n in range(MANY)}),
        "metrics",
    ),
    "metrics without end in lists": (
        lambda: metrics({str(n): [1.0] * 500 for n in range(500)}),
        "metrics",
    ),
    "an integer that no float holds": (lambda: metrics({"n": 10**5000}), "metrics"),
    "one of them in a list": (lambda: metrics({"n": [1, 10**5000]}), "metrics"),
    "one name for two losses": (
        lambda: records(
            metrics=MetricRecord({"num-examples": 1, "loss": 0.5}),
            validation=MetricRecord({"loss": 0.7}),
        ),
        "metrics",
    ),
    "one name for two numbers of examples": (
        lambda: records(
            metrics=MetricRecord({"num-examples": 1}),
            validation=MetricRecord({"num-examples": 2}),
        ),
        "metrics",
    ),
    "examples that no float holds": (
        lambda: metrics({"num-examples": 10**5000}),
        "metrics",
    ),
    "an array with a name of megabytes": (lambda: named("\x1b" * HUGE), "names"),
    "an array with dots and slashes": (lambda: named("../../etc/passwd"), "names"),
    "arrays without end": (
        lambda: reply(ArrayRecord({str(n): Array(np.ones(1)) for n in range(10**4)})),
        "names",
    ),
    "a serialisation of megabytes": (
        lambda: reply_with("weight", Array("f4", (2, 3), "\x1b" * HUGE, b"x")),
        "unreadable",
    ),
    "a thousand dims": (lambda: shaped((1,) * 300), "shape"),
    "a huge product": (lambda: shaped((2**40,) * 20), "shape"),
    "dims of many digits": (lambda: shaped((10**400,)), "unreadable"),
}


def numbers(count):
    """Return metrics with so many numbers in lists."""
    return metrics({"a": [1.0] * (count - 10), "b": [1] * 10})


@pytest.mark.parametrize(
    ("message", "most"),
    [
        (lambda n: metrics({str(each): 1.0 for each in range(n - 1)}), 1000),
        (numbers, 100_000),
        (
            lambda n: records(**{str(each): ConfigRecord() for each in range(n - 2)}),
            100,
        ),
        (lambda n: metrics({"n": n}), 2**63 - 1),
        (lambda n: metrics({"n": [-n]}), 2**63 - 1),
    ],
    ids=["metrics", "numbers in lists", "records", "an integer", "one below 0"],
)
def test_as_much_as_there_may_be_is_read_and_no_more(message, most):
    assert wire.read_reply(message(most), EXPECTED).num_examples == 1
    with pytest.raises(ReplyError):
        wire.read_reply(message(most + 1), EXPECTED)


@pytest.mark.parametrize(("message", "kind"), ABSURD.values(), ids=list(ABSURD))
def test_what_is_absurd_is_refused_at_once(message, kind):
    message, seconds = message(), []
    for _ in range(3):  # in one of them garbage may be collected
        started = time.process_time()
        with pytest.raises(ReplyError) as caught:
            wire.read_reply(message, EXPECTED)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.1
    assert caught.value.kind == kind
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize(
    "name", ["records without end", "metrics without end", "a reason of megabytes"]
)
def test_an_evaluation_is_bounded_likewise(name):
    message, kind = ABSURD[name]
    with pytest.raises(ReplyError) as caught:
        wire.read_evaluation(message(), KEYS)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        ("train/loss.mean", "train/loss.mean"),
        ("\x1b[31mloss\x1b[0m", "[31mloss[0m"),
        ("a\nb\r\0", "a b"),
        ("\u202eesrever", "esrever"),
        ("\ud800", ""),
        ("x" * HUGE, "x" * 200 + "..."),
    ],
)
def test_names_of_metrics_are_short_and_can_be_printed(name, becomes):
    read = wire.read_reply(metrics({name: 0.5}), EXPECTED)
    assert wire.flat_metrics(read.metrics) == {"num-examples": 1, becomes: 0.5}
    evaluated = wire.read_evaluation(metrics({name: 0.5}), KEYS)
    assert wire.flat_metrics(evaluated) == {"num-examples": 1, becomes: 0.5}


def test_names_of_records_are_too():
    read = wire.read_reply(
        records(**{"\x1b" * HUGE: MetricRecord({"loss": 1.0})}), EXPECTED
    )
    assert all(name.isprintable() and len(name) < 300 for name in read.metrics)


@pytest.mark.parametrize("odd", ["num-examples\0", "\x1bnum-examples"])
def test_a_name_that_cannot_be_printed_takes_no_others_place(odd):
    """Flower's mean would weigh the client by what nothing has bounded."""
    for values in ({"num-examples": 7, odd: 1e18}, {odd: 1e18, "num-examples": 7}):
        message = records(metrics=MetricRecord(values))
        read = wire.read_reply(message, EXPECTED)
        assert read.num_examples == read.metrics["metrics"]["num-examples"] == 7


def test_nor_does_the_name_of_a_record():
    for names in (("metrics", "metrics\0"), ("metrics\0", "metrics")):
        examples, other = names
        content = {
            other: MetricRecord({"loss": 9.0}),
            examples: MetricRecord({"num-examples": 7}),
        }
        read = wire.read_evaluation(Message(RecordDict(content), reply_to=task()), KEYS)
        assert next(iter(read.metric_records.values()))["num-examples"] == 7


def test_a_loss_that_is_no_number_is_still_seen():
    """A device that diverges: its loss must not vanish."""
    read = wire.read_reply(metrics({"loss": math.nan, "norm": math.inf}), EXPECTED)
    flat = wire.flat_metrics(read.metrics)
    assert math.isnan(flat["loss"])
    assert flat["norm"] == math.inf


def test_a_metric_of_two_records_that_agree_is_one():
    again = MetricRecord({"num-examples": 1, "loss": math.nan})
    read = wire.read_reply(
        records(metrics=MetricRecord({**again}), validation=again), EXPECTED
    )
    assert read.num_examples == 1
    assert math.isnan(wire.flat_metrics(read.metrics)["loss"])


def test_usual_metrics_are_passed_on_as_they_are():
    values = {f"metric-{n}": [0.5] * 90 for n in range(900)}
    message = metrics(values)
    read = wire.read_reply(message, EXPECTED)
    assert read.metrics["metrics"] is message.content["metrics"]
