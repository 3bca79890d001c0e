"""The client's mod: weights decoded, changes coded, and what that costs sent later."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop import CodecMod, load_submodel, wire
from flwr_asyncdrop.exceptions import ConfigError, ReplyError
from flwr_asyncdrop.submodel import declare_plan, extract, silenced
from tests.nightly import examples

KEYS = wire.RecordKeys()
ROWS = 16  # units of 32 numbers each
SHAPES = {"weight": (ROWS, 32), "bias": (ROWS,)}
PLAN = declare_plan(SHAPES, {"units": {"weight": 0, "bias": 0}})
Q4 = wire.Coding("q8", "q4", 3, 4, feedback=True)
ALL = range(ROWS)


def weights():
    generator = torch.Generator().manual_seed(0)
    return {n: torch.randn(shape, generator=generator) for n, shape in SHAPES.items()}


def context():
    return Context(1, 2, {}, RecordDict(), {})


def part(state, units, masked):
    indices = PLAN.indices((torch.tensor(sorted(units)),))
    return (silenced if masked else extract)(state, indices), indices


def task(state, units=ALL, coding=Q4, *, masked=False, device=None, run="one"):
    """Return a task as the server sends it, and the weights that were coded."""
    arrays, indices = part(state, units, masked)
    record = wire.encode_weights(arrays, coding)
    message = wire.make_task(
        record,
        {
            **wire.kept_entries(indices, SHAPES, KEYS.arrays),
            **coding.entries(KEYS.arrays, run),
        },
        wire.TaskConfig(1, 0, device, None if device is None else 9),
        node_id=5,
        keys=KEYS,
    )
    return message, arrays


def adding(change):
    """Return an app that adds to the weights."""

    def app(message, _):
        state = wire.from_record(message.content["arrays"])
        trained = {n: tensor + change(n, tensor) for n, tensor in state.items()}
        content = {
            "arrays": wire.to_record(trained),
            "metrics": MetricRecord({"num-examples": 3}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def constant(value):
    return adding(lambda name, tensor: torch.full_like(tensor, value))


def expected(sent, coding=Q4):
    return wire.Expected(
        {name: tuple(t.shape) for name, t in sent.items()},
        {name: t.dtype for name, t in sent.items()},
        coding=coding,
        sent=sent,
    )


def done(app, state=None, units=ALL, coding=Q4, *, ctx=None, **how):
    """Return the change that the server reads off a device's reply."""
    message, sent = task(state or weights(), units, coding, **how)
    reply = CodecMod()(message, ctx or context(), app)
    trained = wire.read_reply(reply, expected(sent, coding)).arrays
    return {name: trained[name] - sent[name] for name in sent}


def test_the_app_gets_rounded_weights():
    message, _ = task(weights())
    sent = wire.decode_weights(message.content["arrays"], Q4)
    seen = {}

    def app(message, _):
        seen.update(wire.from_record(message.content["arrays"]))
        return Message(RecordDict(), reply_to=message)

    CodecMod()(message, context(), app)
    assert seen.keys() == sent.keys()
    assert all(torch.equal(seen[name], sent[name]) for name in sent)
    assert torch.equal(seen["bias"], weights()["bias"])
    assert not torch.equal(seen["weight"], weights()["weight"])


def test_a_task_without_a_codec_is_passed_on():
    message, _ = task(weights(), coding=wire.Coding())
    before = message.content["arrays"]
    reply = CodecMod()(message, context(), constant(1.0))
    assert message.content["arrays"] is before
    assert reply.content["arrays"]["weight"].stype == "numpy.ndarray"


def test_a_constant_change_comes_back_exactly():
    change = done(constant(0.5))
    assert torch.allclose(change["weight"], torch.full((ROWS, 32), 0.5), atol=1e-2)
    assert torch.allclose(change["bias"], torch.full((ROWS,), 0.5), atol=1e-6)


def ramp(name, tensor):
    return torch.linspace(-1, 1, tensor.numel()).reshape(tensor.shape)


def test_with_feedback_what_is_lost_is_sent_the_next_time():
    """Of n equal changes all but one rounding arrives: the error does not add up."""
    ctx, coding = context(), wire.Coding("q8", "q2", 3, 4, feedback=True)
    total, wanted = torch.zeros(ROWS, 32), torch.zeros(ROWS, 32)
    errors = []
    for number in range(12):
        coding = wire.Coding("q8", "q2", 3, number, feedback=True)
        total += done(adding(ramp), coding=coding, ctx=ctx)["weight"]
        wanted += ramp("weight", wanted)
        errors.append(float((total - wanted).norm() / ramp("", wanted).norm()))
    assert max(errors) < 1.0
    assert errors[-1] < 3 * errors[0]


def test_without_feedback_nothing_is_kept():
    ctx = context()
    done(adding(ramp), coding=wire.Coding("q8", "q4", 3, 4), ctx=ctx)
    assert not list(ctx.state)


def test_what_is_owed_is_sent_once_by_a_codec_without_feedback():
    """A `CodecChoice` may mix codecs: one keeps a debt, and another one pays it."""
    ctx = context()
    keeps = wire.Coding("q8", "top10%+q8", 3, 4, feedback=True)
    first = done(adding(ramp), coding=keeps, ctx=ctx)["weight"]
    owed = ramp("weight", first) - first
    assert owed.norm() > 0.5 * first.norm()
    paid, *others = (
        done(constant(0.0), coding=wire.Coding("q8", "q8", 3, seed), ctx=ctx)["weight"]
        for seed in range(3)
    )
    assert torch.allclose(paid, owed, atol=0.02)
    assert not any(other.any() for other in others)


def test_what_is_owed_of_units_that_are_left_out_waits():
    ctx = context()
    keeps = wire.Coding("q8", "top10%+q8", 3, 4, feedback=True)
    plain = wire.Coding("q8", "q8", 3, 5)
    first = done(adding(ramp), coding=keeps, ctx=ctx)["weight"]
    owed = ramp("weight", first) - first
    for units in (range(8), range(8, ROWS)):
        paid = done(constant(0.0), units=units, coding=plain, ctx=ctx)["weight"]
        assert torch.allclose(paid, owed[list(units)], atol=0.02)


@pytest.mark.parametrize("masked", [False, True])
def test_what_is_owed_belongs_to_the_units_of_the_full_model(masked):
    """Each unit gets back what its own tasks have lost, however tasks are cut."""
    ctx, state = context(), weights()
    owed = torch.zeros(ROWS, 32)
    tasks = [
        (0, 1, 2, 3, 8, 9, 10, 11),
        tuple(range(4, 14)),
        tuple(ALL),
        (1, 3, *range(5, 15)),
    ]
    for number, units in enumerate(tasks):
        coding = wire.Coding("q8", "q4", 3, number, feedback=True)
        message, sent = task(state, units, coding, masked=masked)
        reply = CodecMod()(message, ctx, adding(ramp))
        arrays = wire.read_reply(reply, expected(sent, coding)).arrays
        got = arrays["weight"] - sent["weight"]
        wanted = ramp("weight", got)
        rows = list(units)
        if masked:
            got, wanted = got[rows], wanted[rows]
        owed[rows] = owed[rows] + wanted - got
        kept = wire.from_record(ctx.state.array_records["asyncdrop-residual.own"])
        assert torch.allclose(kept["weight"], owed, atol=1e-5)
    assert "bias" not in kept


def test_devices_that_one_node_plays_owe_apart():
    ctx = context()
    done(adding(ramp), ctx=ctx, device=0)
    before = wire.from_record(ctx.state.array_records["asyncdrop-residual.0"])
    done(adding(ramp), ctx=ctx, device=1)
    after = wire.from_record(ctx.state.array_records["asyncdrop-residual.0"])
    assert torch.equal(before["weight"], after["weight"])
    assert {*ctx.state.array_records} == {
        "asyncdrop-residual.0",
        "asyncdrop-residual.1",
    }


def test_what_another_model_has_left_is_forgotten():
    ctx = context()
    ctx.state["asyncdrop-residual.own"] = wire.to_record({"weight": torch.ones(3, 3)})
    change = done(constant(0.5), ctx=ctx)
    assert torch.allclose(change["weight"], torch.full((ROWS, 32), 0.5), atol=1e-2)


def test_what_is_owed_to_another_run_is_forgotten():
    ctx = context()
    first, again, other = (done(adding(ramp), ctx=ctx, run=run) for run in "aab")
    assert torch.equal(first["weight"], other["weight"])
    assert not torch.equal(first["weight"], again["weight"])


def test_an_app_that_fails_owes_what_it_owed():
    ctx = context()
    done(adding(ramp), ctx=ctx)
    before = wire.from_record(ctx.state.array_records["asyncdrop-residual.own"])

    def fails(message, _):
        return Message(Error(3, "no"), reply_to=message)

    message, _ = task(weights())
    assert CodecMod()(message, ctx, fails).has_error()
    after = wire.from_record(ctx.state.array_records["asyncdrop-residual.own"])
    assert torch.equal(before["weight"], after["weight"])


BAD = {
    "shape": (lambda a: a["weight"].__class__(np.zeros((2, 2), np.float32)), "shape"),
    "nan": (lambda a: Array(np.full((ROWS, 32), np.nan, np.float32)), "non-finite"),
    "far": (lambda a: Array(np.full((ROWS, 32), 1e38, np.float32)), "non-finite"),
    "integers": (lambda a: Array(np.zeros((ROWS, 32), np.int64)), "dtype"),
    "text": (lambda a: Array("float32", (ROWS, 32), "pickle", b"x"), "unreadable"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_coded_is_refused_by_its_own_kind(case):
    make, kind = BAD[case]

    def app(message, ctx):
        reply = constant(0.1)(message, ctx)
        record = reply.content["arrays"]
        reply.content["arrays"] = ArrayRecord({**record, "weight": make(record)})
        return reply

    message, sent = task(weights())
    ctx = context()
    reply = CodecMod()(message, ctx, app)
    with pytest.raises(ReplyError) as caught:
        wire.read_reply(reply, expected(sent))
    assert caught.value.kind == kind
    assert not list(ctx.state)


@pytest.mark.parametrize("coding", [Q4, wire.Coding("q8", ""), wire.Coding("", "q8")])
def test_what_single_precision_cannot_hold_is_refused(coding):
    """The next task would have to code it."""
    far = constant(1e39)
    with pytest.raises(ReplyError, match="'weight' holds NaN, infinity") as caught:
        done(far, {"weight": torch.zeros(ROWS, 32).double()}, coding=coding)
    assert caught.value.kind == "non-finite"


@pytest.mark.parametrize("coding", [Q4, wire.Coding("q8", ""), wire.Coding("", "q8")])
def test_half_precision_changes_by_more_than_it_can_hold(coding):
    state = {"weight": torch.full((ROWS, 32), 6e4).half()}

    def app(message, _):
        weights = wire.from_record(message.content["arrays"])["weight"]
        content = {
            "arrays": wire.to_record({"weight": -weights}),
            "metrics": MetricRecord({"num-examples": 3}),
        }
        return Message(RecordDict(content), reply_to=message)

    message, sent = task(state, coding=coding)
    reply = CodecMod()(message, context(), app)
    trained = wire.read_reply(reply, expected(sent, coding)).arrays["weight"]
    assert torch.allclose(trained.float(), torch.tensor(-6e4), rtol=0.02)


def test_one_unsound_array_is_named_and_no_other():
    """The array before it, which could be coded, is not what is wrong."""
    state = {"a": torch.zeros(300), "b": torch.zeros(300)}
    coding = wire.Coding("q8", "q4", 3, 4, feedback=True)
    record = wire.encode_weights(state, coding)
    message = wire.make_task(
        record, coding.entries(KEYS.arrays), wire.TaskConfig(1, 0), node_id=5, keys=KEYS
    )

    def app(message, ctx):
        far = {"a": 0.0, "b": 1e30}
        return adding(lambda name, tensor: far[name])(message, ctx)

    ctx = context()
    with pytest.raises(ReplyError, match="'b' holds NaN, infinity or values") as caught:
        wire.read_reply(CodecMod()(message, ctx, app), expected(state, coding))
    assert caught.value.kind == "non-finite"
    assert not list(ctx.state)


@pytest.mark.parametrize("order", [("arrays", "control"), ("control", "arrays")])
def test_records_beside_the_model_stay_as_they_are(order):
    """SCAFFOLD's control variates have the model's names, wherever they stand."""
    state, config = weights(), wire.TaskConfig(1, 0)
    message = wire.make_task(
        wire.encode_weights(state, Q4),
        Q4.entries(KEYS.arrays),
        config,
        node_id=5,
        keys=KEYS,
        extra={"control": wire.to_record(state)},
    )

    def app(message, _):
        content = {key: message.content[key] for key in order}
        content["metrics"] = MetricRecord({"num-examples": 3})
        return Message(RecordDict(content), reply_to=message)

    reply = CodecMod()(message, context(), app)
    due = replace(expected(state), extra={"control": tuple(state)})
    control = wire.read_reply(reply, due).extra["control"]
    assert all(torch.equal(control[name], state[name]) for name in state)


def test_a_reply_with_other_names_says_so():
    def app(message, ctx):
        reply = constant(0.1)(message, ctx)
        record = reply.content["arrays"]
        reply.content["arrays"] = ArrayRecord({"weight": record["weight"]})
        return reply

    message, sent = task(weights())
    with pytest.raises(ReplyError, match="'bias'") as caught:
        wire.read_reply(CodecMod()(message, context(), app), expected(sent))
    assert caught.value.kind == "names"


def test_loading_coded_arrays_names_the_mod():
    message, _ = task(weights())
    with pytest.raises(ConfigError, match=r"CodecMod\(\)"):
        load_submodel(torch.nn.Linear(32, ROWS), message.content["arrays"])


@settings(max_examples=examples(40))
@given(
    st.sampled_from(["q8", "q4", "q2", "q1", "top10%+q4"]),
    st.booleans(),
    st.floats(-1e4, 1e4, width=32),
    st.integers(0, 2**31),
)
def test_any_reply_that_is_coded_can_be_read(name, feedback, scale, seed):
    coding = wire.Coding("q4", name, seed, seed + 1, feedback=feedback)
    change = done(adding(lambda n, t: scale * ramp(n, t)), coding=coding)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in change.values())
    wanted = scale * ramp("weight", change["weight"])
    assert (
        float((change["weight"] - wanted).norm()) <= 2.5 * float(wanted.norm()) + 1e-3
    )
