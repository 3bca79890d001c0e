"""A message that is done with leaves memory at once, without the garbage collector."""

import ast
import gc
import weakref
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

import flwr_asyncdrop
from flwr_asyncdrop import wire
from tests.wire.messages import EXPECTED, KEYS, reply, state, task

PACKAGE = Path(flwr_asyncdrop.__file__).parent


@pytest.fixture(autouse=True)
def _without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_records_come_by_kind_and_in_their_order():
    content = RecordDict(
        {
            "b": ArrayRecord(),
            "c": ConfigRecord({"x": 1}),
            "a": ArrayRecord(),
            "m": MetricRecord({"y": 2}),
        }
    )
    assert list(wire.records_of(content, ArrayRecord)) == ["b", "a"]
    assert wire.records_of(content, ArrayRecord)["a"] is content["a"]
    assert list(wire.records_of(content, ConfigRecord)) == ["c"]
    assert list(wire.records_of(content, MetricRecord)) == ["m"]


READS = {
    "a reply": lambda message: wire.read_reply(message, EXPECTED),
    "an evaluation": lambda message: wire.read_evaluation(message, KEYS),
    "a report": wire.read_report,
    "a config": wire.read_config,
    "what is kept": wire.read_kept,
    "a coding": wire.read_coding,
    "frozen tensors": wire.read_frozen,
    "a probe": wire.is_probe,
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_what_is_read_leaves_no_message_behind(read):
    message = reply(wire.to_record(state()))
    record = weakref.ref(message.content["arrays"])
    read(message)
    del message
    assert record() is None


def test_a_task_is_not_left_behind_either():
    message = task()
    content = weakref.ref(message.content)
    wire.read_task(message)
    del message
    assert content() is None


def test_the_views_of_flower_are_not_used():
    """They refer to themselves, and keep the arrays of their message."""
    views = {"array_records", "config_records", "metric_records"}
    found = [
        f"{path.name}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in views
    ]
    assert found == []
