"""Records of coded arrays: what is coded, what it weighs, and what is refused."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.wire.codec import scheme
from flwr_asyncdrop.wire.coded import read_trained
from flwr_asyncdrop.wire.npy import CODED
from tests.nightly import examples
from tests.wire.messages import KEYS, reply, task

CODING = wire.Coding("q4", "q4", 1, 2)


def state():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    return {
        "weight": draw(32, 20),
        "half": draw(300).half(),
        "double": draw(300).double(),
        "bias": draw(20),
        "bn.running_mean": draw(512),
        "bn.running_var": draw(512).abs(),
        "count": torch.tensor(7),
        "positions": torch.arange(512),
        "none": draw(0, 512),
    }


IS_CODED = {"weight", "half", "double"}


def test_large_floating_point_tensors_are_coded_and_no_statistics():
    record = wire.encode_weights(state(), CODING)
    coded = {name for name, array in record.items() if array.stype.startswith(CODED)}
    assert coded == IS_CODED
    for name, tensor in state().items():
        assert wire.is_coded(name, tuple(tensor.shape), tensor.dtype) == (name in coded)


@pytest.mark.parametrize(("shape", "coded"), [((255,), False), ((16, 16), True)])
def test_clients_of_all_versions_code_tensors_of_256_numbers(shape, coded):
    assert wire.is_coded("w", shape, torch.float32) == coded
    record = wire.encode_weights({"w": torch.ones(shape)}, CODING)
    assert record["w"].stype.startswith(CODED) == coded


def test_what_is_decoded_is_near_and_the_rest_is_the_same():
    decoded = wire.decode_weights(wire.encode_weights(state(), CODING), CODING)
    for name, tensor in state().items():
        assert decoded[name].dtype == tensor.dtype
        if name in IS_CODED:
            error = (decoded[name].double() - tensor.double()).norm()
            assert 0 < float(error / tensor.double().norm()) < 0.15
        else:
            assert torch.equal(decoded[name], tensor)


@pytest.mark.parametrize("down", ["q8", "q4", "q4/128"])
def test_the_largest_numbers_of_half_precision_stay_finite(down):
    """Scales are rounded up, and so is what they multiply."""
    coding = wire.Coding(down)
    most = torch.finfo(torch.float16).max
    for share in torch.linspace(0.99, 1, 50):
        state = {"w": torch.full((512,), most * float(share), dtype=torch.float16)}
        decoded = wire.decode_weights(wire.encode_weights(state, coding), coding)["w"]
        assert torch.allclose(decoded.float(), state["w"].float(), rtol=0.01)


def test_the_size_is_known_before():
    shapes = {name: tuple(tensor.shape) for name, tensor in state().items()}
    dtypes = {name: tensor.dtype for name, tensor in state().items()}
    assert wire.coded_bytes(shapes, dtypes, "") == wire.array_bytes(
        wire.to_record(state())
    )
    coded = wire.array_bytes(wire.encode_weights(state(), CODING))
    assert coded <= wire.coded_bytes(shapes, dtypes, "q4")


def test_what_a_task_says_is_read_again():
    for coding in (
        CODING,
        wire.Coding("q8", "", 2**62, 5),
        wire.Coding("", "top10%+q4", 0, 2**63 - 1, feedback=True),
    ):
        message = task()
        config = message.content["config"]
        config.update(coding.entries(KEYS.arrays))
        assert wire.read_coding(message) == (KEYS.arrays, coding)
    assert wire.read_coding(task()) is None
    assert wire.Coding().entries("arrays") == {}


@pytest.mark.parametrize(
    ("coding", "name"),
    [
        (wire.Coding(), ""),
        (CODING, "q4"),
        (wire.Coding("q4", "q2"), "q4/q2"),
        (wire.Coding("", "q2"), "none/q2"),
        (wire.Coding("q4", ""), "q4/none"),
    ],
)
def test_a_coding_has_one_word(coding, name):
    assert coding.name == name


def good():
    sent = torch.zeros(32, 20)
    change = {"weight": torch.linspace(-1, 1, 640).reshape(32, 20)}
    return sent, wire.encode_changes(change, {"weight": sent}, CODING)["weight"]


@pytest.mark.parametrize(
    "wrong", [{"stype": f"{CODED}q8"}, {"dtype": "bfloat16"}, {"data": b"odd"}]
)
def test_weights_that_cannot_be_read(wrong):
    record = wire.encode_weights({"weight": torch.zeros(32, 20)}, CODING)
    damaged = ArrayRecord({"weight": with_(record["weight"], **wrong)})
    with pytest.raises(ValueError):  # noqa: PT011  # a scheme's, in its own words
        wire.decode_weights(damaged, CODING)


def test_a_change_is_added_to_what_was_sent():
    sent, array = good()
    trained = read_trained("weight", array, sent + 5, CODING)
    change = wire.decode_change(array, "weight", CODING)
    assert torch.equal(trained, sent + 5 + change)
    assert float((change.flatten() - torch.linspace(-1, 1, 640)).abs().max()) < 0.35


def test_codes_are_unbiased_without_feedback():
    sent = torch.zeros(512)
    change = {"w": torch.linspace(-1, 1, 512)}
    total = torch.zeros(512)
    for seed in range(300):
        coding = wire.Coding("", "q4", 0, seed)
        array = wire.encode_changes(change, {"w": sent}, coding)["w"]
        total += wire.decode_change(array, "w", coding)
    assert float((total / 300 - change["w"]).abs().max()) < 0.04


def with_(array, **changes):
    fields = {n: getattr(array, n) for n in ("dtype", "shape", "stype", "data")}
    return Array(**{**fields, **changes})


HOSTILE = {
    "another scheme": lambda a: with_(a, stype=CODED + "q8"),
    "no scheme": lambda a: with_(a, stype=CODED),
    "another shape": lambda a: with_(a, shape=(20, 32)),
    "a huge shape": lambda a: with_(a, shape=(2**40, 2**40)),
    "negative": lambda a: with_(a, shape=(-32, -20)),
    "another dtype": lambda a: with_(a, dtype="float64"),
    "no dtype": lambda a: with_(a, dtype="\x1b[31mred"),
    "nothing": lambda a: with_(a, data=b""),
    "half": lambda a: with_(a, data=a.data[: len(a.data) // 2]),
    "more": lambda a: with_(a, data=a.data + b"\0"),
    "zeros": lambda a: with_(a, data=bytes(len(a.data))),
    "ones": lambda a: with_(a, data=b"\xff" * len(a.data)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_foreign_bytes_are_refused_in_one_line(case):
    sent, array = good()
    with pytest.raises(ReplyError) as caught:
        read_trained("weight", HOSTILE[case](array), sent, CODING)
    assert caught.value.kind == "codec"
    assert str(caught.value).isprintable()


def test_an_array_that_is_not_coded_names_the_mod():
    sent, _ = good()
    with pytest.raises(ReplyError, match=r"CodecMod\(\)") as caught:
        read_trained("weight", Array(sent.numpy()), sent, CODING)
    assert caught.value.kind == "codec"
    with pytest.raises(ReplyError) as caught:
        read_trained("weight", Array(np.zeros(3, np.float32)), sent, CODING)
    assert caught.value.kind == "shape"


def test_changes_that_lead_out_of_range_are_refused():
    sent = torch.full((512,), 1e19)
    array = wire.encode_changes({"w": torch.full((512,), 1e38)}, {"w": sent}, CODING)
    with pytest.raises(ReplyError) as caught:
        read_trained("w", array["w"], sent, CODING)
    assert caught.value.kind == "non-finite"


def test_a_raw_reply_of_what_is_not_coded_is_read_as_ever():
    sent = {"bias": torch.zeros(20), "weight": torch.zeros(32, 20)}
    change = {"weight": torch.ones(32, 20)}
    coded = wire.encode_changes(change, sent, CODING)
    record = ArrayRecord({**wire.to_record({"bias": torch.ones(20)}), **coded})
    expected = wire.Expected(
        {n: tuple(t.shape) for n, t in sent.items()},
        {n: t.dtype for n, t in sent.items()},
        coding=CODING,
        sent=sent,
    )
    read = wire.read_reply(reply(record), expected)
    assert torch.equal(read.arrays["bias"], torch.ones(20))
    assert torch.allclose(read.arrays["weight"], torch.ones(32, 20), atol=0.2)
    assert read.num_bytes == wire.array_bytes(record)


@settings(max_examples=examples(150))
@given(st.data())
def test_any_bytes_are_read_or_refused(data):
    name = data.draw(st.sampled_from(["q8", "q4", "q2", "q1", "top10%+q4"]))
    coding = wire.Coding("", name, 0, 1)
    sent = torch.zeros(300)
    honest = scheme(name).encode(np.ones(300, np.float32), 5, unbiased=True)
    flipped = bytearray(honest)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(flipped) - 1))
        flipped[at] ^= data.draw(st.integers(1, 255))
    payload = data.draw(st.sampled_from([bytes(flipped), data.draw(st.binary())]))
    array = Array("float32", (300,), CODED + name, payload)
    kind = ""
    try:
        read = read_trained("w", array, sent, coding)
    except ReplyError as error:
        kind, read = error.kind, sent
    assert kind in ("", "codec", "non-finite")
    assert bool(torch.isfinite(read).all())
