import math

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.flower_internals.identity import assume_identity

assume_identity(run_id=1)

REPORT = wire.DeviceReport(1.5, 10.0, 12.0, memory=2e9, capacity=3.0, bandwidth=1e6)


def reply(content=None):
    return Message(RecordDict(content or {}), reply_to=wire.make_probe(7, ttl=60))


def test_a_report_comes_back_as_it_was():
    message = reply()
    wire.add_report(message, REPORT)
    assert wire.read_report(message) == REPORT


def test_what_the_app_itself_reports_stays():
    message = reply()
    wire.add_report(message, REPORT)
    wire.add_report(message, wire.DeviceReport(9.0))
    assert wire.read_report(message) == REPORT


def test_a_reply_without_a_report_has_none():
    assert wire.read_report(reply()) is None
    failed = Message(Error(code=3), reply_to=wire.make_probe(7, ttl=60))
    assert wire.read_report(failed) is None


def test_what_a_device_does_not_know_is_0_in_its_report():
    message = reply()
    wire.add_report(message, wire.DeviceReport(memory=2.0**40))
    assert wire.read_report(message) == wire.DeviceReport(memory=2.0**40)
    del message.content["asyncdrop-device"]["capacity"]
    assert wire.read_report(message) == wire.DeviceReport(memory=2.0**40)


@pytest.mark.parametrize("value", [0, 1, wire.LARGEST_REPORTED])
def test_a_report_with_what_can_be_meant_is_one(value):
    message = reply()
    wire.add_report(message, REPORT)
    message.content["asyncdrop-device"]["train-seconds"] = value
    assert wire.read_report(message).train_seconds == value


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -1.0, -5e-324, 1e16, 1e308, 10**400, "fast", b"1", [1.0, 2.0]],
)
def test_a_report_with_what_cannot_be_meant_is_no_report(value):
    message = reply()
    wire.add_report(message, REPORT)
    message.content["asyncdrop-device"]["train-seconds"] = value
    assert wire.read_report(message) is None


def test_a_greeting_is_known_from_a_task():
    probe = wire.make_probe(7, ttl=60)
    assert wire.is_probe(probe)
    assert (probe.metadata.dst_node_id, probe.metadata.ttl) == (7, 60)
    task = wire.make_task(
        wire.to_record({}),
        {"asyncdrop-greeting": False},
        wire.TaskConfig(1, 2),
        node_id=7,
        keys=wire.RecordKeys(),
    )
    assert not wire.is_probe(task)
    assert not wire.is_probe(reply({"config": ConfigRecord({})}))
