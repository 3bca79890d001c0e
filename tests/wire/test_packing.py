"""All arrays of a record as one: the same again, and nothing of a broken one."""

import json
import struct

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop import CodecMod, wire
from flwr_asyncdrop.exceptions import ConfigError, ReplyError
from flwr_asyncdrop.wire.packing import PACKED
from tests.nightly import examples
from tests.wire.messages import EXPECTED, reply, state, task


def same(one, other):
    return list(one) == list(other) and all(
        (one[n].dtype, one[n].shape, one[n].stype, one[n].data)
        == (other[n].dtype, other[n].shape, other[n].stype, other[n].data)
        for n in one
    )


def packed_record(data):
    return ArrayRecord({"packed": Array("uint8", (len(data),), PACKED, data)})


def with_list(entries, rest=b""):
    head = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return packed_record(struct.pack("<I", len(head)) + head + rest)


def test_the_bytes_by_hand():
    record = ArrayRecord(
        {"a": Array("int8", (2,), "one", b"xy"), "b": Array("f", (), "two", b"")}
    )
    packed = wire.packed(RecordDict({"arrays": record}))["arrays"]["packed"]
    head = b'[["a","int8",[2],"one",2],["b","f",[],"two",0]]'
    assert packed.data == struct.pack("<I", len(head)) + head + b"xy"
    assert (packed.dtype, packed.shape) == ("uint8", (len(packed.data),))
    assert packed.stype == "asyncdrop.packed"


NAMES = st.text(max_size=8)


@given(st.dictionaries(NAMES, st.tuples(NAMES, st.binary(max_size=20)), min_size=2))
def test_what_is_packed_comes_out_as_it_was(arrays):
    record = ArrayRecord(
        {n: Array("x", (1, 2), stype, data) for n, (stype, data) in arrays.items()}
    )
    content = RecordDict({"of any key": record, "config": task().content["config"]})
    packed = wire.packed(content)
    assert same(record, content["of any key"])
    assert wire.is_packed(packed["of any key"])
    assert packed["config"] == content["config"]
    assert same(wire.unpacked(packed)["of any key"], record)


def test_a_record_of_one_array_or_none_stays():
    for record in (ArrayRecord(), ArrayRecord({"packed": Array("f", (), "s", b"")})):
        content = RecordDict({"arrays": record})
        assert wire.packed(content) is content
        assert wire.unpacked(content) is content


BROKEN = {
    "nothing": packed_record(b""),
    "a length alone": packed_record(b"\x00\x00\x00"),
    "a list longer than the bytes": packed_record(struct.pack("<I", 9) + b"[]"),
    "no JSON": with_list(b"["),
    "deep": with_list(b"[" * 100_000),
    "no list": with_list({}),
    "no entries": with_list([1, 2]),
    "an entry too short": with_list([["a", "b", [], "c"]]),
    "a name that is a number": with_list([[1, "b", [], "c", 0]]),
    "a shape of texts": with_list([["a", "b", ["c"], "c", 0]]),
    "a shape of truths": with_list([["a", "b", [True], "c", 0]]),
    "a negative dim": with_list([["a", "b", [-1], "c", 0]]),
    "a negative size": with_list([["a", "b", [], "c", -1]], b"x"),
    "a size of digits": with_list(b'[["a","b",[],"c",' + b"9" * 5000 + b"]]"),
    "more than there is": with_list([["a", "b", [], "c", 2]], b"x"),
    "bytes left": with_list([["a", "b", [], "c", 1]], b"xy"),
    "a name twice": with_list(2 * [["a", "b", [], "c", 1]], b"xy"),
    "no text": with_list(b"\xff\xfe"),
}


@pytest.mark.parametrize("record", BROKEN.values(), ids=list(BROKEN))
def test_what_is_broken_is_refused_by_kind(record):
    with pytest.raises(ValueError, match=r"^its? "):
        wire.unpack(record)
    with pytest.raises(ReplyError) as caught:
        wire.read_reply(reply(record), EXPECTED)
    assert caught.value.kind == "codec"
    assert str(caught.value).isprintable()


def test_a_stranger_s_list_is_not_read_if_it_is_too_long():
    entry = ["n" * 100, "float32", [1], "s", 0]
    record = with_list([[f"{n}", *entry[1:]] for n in range(1000)])
    assert len(wire.unpack(record)) == 1000
    with pytest.raises(ValueError, match="for 3 arrays"):
        wire.unpack(record, 3)


@pytest.mark.parametrize(("length", "is_read"), [(400, True), (3000, False)])
def test_a_list_has_some_hundreds_of_bytes_for_each_array(length, is_read):
    """To read one takes 25 times its bytes of memory, and most may be 10,000 arrays."""
    names = [f"{letter}.{'x' * length}" for letter in "ab"]
    record = with_list([[name, "float32", [1], "s", 0] for name in names])
    if is_read:
        assert list(wire.unpack(record, 2)) == names
        return
    with pytest.raises(ValueError, match="for 2 arrays"):
        wire.unpack(record, 2)


@settings(max_examples=examples(300))
@given(st.data())
def test_damage_is_refused_or_read_within_its_bytes(data):
    whole = wire.packed(reply().content)["arrays"]["packed"].data
    cut = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(cut) - 1)), max_size=3)):
        if cut:
            cut[place] ^= data.draw(st.integers(1, 255))
    try:
        arrays = wire.unpack(packed_record(bytes(cut)))
    except ValueError:
        return
    assert sum(len(array.data) for array in arrays.values()) <= len(cut)


def test_a_packed_reply_is_that_reply():
    plain = wire.read_reply(reply(), EXPECTED)
    packed = reply(wire.packed(reply().content)["arrays"])
    found = wire.read_reply(packed, EXPECTED)
    assert found.num_bytes == plain.num_bytes
    assert all(torch.equal(found.arrays[n], plain.arrays[n]) for n in plain.arrays)


def test_records_beside_the_model_are_packed_too():
    expected = wire.Expected(EXPECTED.shapes, EXPECTED.dtypes, extra={"c": ["count"]})
    content = reply().content
    content["c"] = wire.to_record({"count": torch.tensor(3), "more": torch.ones(2)})
    message = Message(wire.packed(content), reply_to=task())
    with pytest.raises(ReplyError, match="'more'"):
        wire.read_reply(message, expected)


class App:
    """Keeps what it got, and returns it."""

    def __call__(self, message, _):
        self.got = message.content["arrays"]
        return reply(self.got, to=message)


@pytest.mark.parametrize("packs", [False, True])
def test_the_mod_answers_in_kind(packs):
    message, app = task(), App()
    if packs:
        message = wire.packed_message(message)
        assert wire.is_packed(message.content["arrays"])
        assert (message.metadata.ttl, message.metadata.dst_node_id) == (60, 5)
    answer = CodecMod()(message, None, app)
    assert same(app.got, wire.to_record(state()))
    assert wire.is_packed(answer.content["arrays"]) == packs
    assert wire.read_reply(answer, EXPECTED).num_examples == 10


def test_a_client_without_the_mod_is_told_the_line():
    message = wire.packed_message(task())
    with pytest.raises(ConfigError, match=r"mods=\[CodecMod\(\)\]"):
        wire.from_record(message.content["arrays"])
