"""A client gets whole models, although tasks travel without what does not train."""

import copy

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict

from flwr_asyncdrop import (
    CodecMod,
    FrozenMod,
    load_personal,
    load_submodel,
    save_personal,
    wire,
)
from flwr_asyncdrop.client.mods import with_mods
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.flower_internals.identity import assume_identity
from flwr_asyncdrop.submodel import extract, plan_submodels, split
from tests.runs import answer, mlp

assume_identity(run_id=1)

KEYS = wire.RecordKeys()
STATE = mlp().state_dict()
TRAINED, FROZEN = split(STATE, ("0.weight", "0.bias"))
OTHER = split(mlp(seed=1).state_dict(), FROZEN.tensors.keys())[1]


def context():
    return Context(1, 2, {}, RecordDict(), {})


def task(frozen=FROZEN, *, brings=False, device=None, indices=None):
    indices = indices or {}
    trained = {n: t for n, t in STATE.items() if n not in frozen.tensors}
    mine = {name: dims for name, dims in indices.items() if name in trained}
    shapes = {name: tuple(tensor.shape) for name, tensor in STATE.items()}
    return wire.make_task(
        wire.to_record(extract(trained, mine)),
        {
            **wire.kept_entries(indices, shapes, KEYS.arrays),
            **wire.frozen_entries(frozen, KEYS.arrays),
        },
        wire.TaskConfig(1, 0, device, None if device is None else 9),
        node_id=5,
        keys=KEYS,
        extra={wire.FROZEN_RECORD: wire.to_record(frozen.tensors)} if brings else {},
    )


def client(message, context):
    model = load_submodel(mlp(seed=9), message.content["arrays"])
    return answer(message, model.state_dict())


def call(mod, message, at, app=client):
    """Return whether the client was called, and its reply."""
    reply = mod(copy.deepcopy(message), at, app)
    return not wire.asks_for_frozen(reply), reply


def does(mod, message, at):
    done, reply = call(mod, message, at)
    if done:
        assert set(reply.content["arrays"]) == TRAINED.keys()
    else:
        assert wire.lacks_frozen(reply, wire.read_frozen(message).sha256)
    return done


def own(state):
    return lambda context: state


def test_a_message_that_leaves_nothing_out_passes():
    message = wire.make_task(
        wire.to_record(STATE), {}, wire.TaskConfig(1, 0), node_id=5, keys=KEYS
    )
    done, reply = call(FrozenMod(), message, context())
    assert done
    assert set(reply.content["arrays"]) == STATE.keys()


def test_the_model_is_whole_and_the_reply_is_not():
    seen = {}

    def look(message, context):
        seen.update(wire.from_record(message.content["arrays"]))
        return client(message, context)

    call(FrozenMod(), task(brings=True), context(), look)
    assert all(torch.equal(seen[name], STATE[name]) for name in STATE)


def test_it_asks_until_they_are_brought_and_then_keeps_them():
    mod, at = FrozenMod(), context()
    assert not does(mod, task(), at)
    assert does(mod, task(brings=True), at)
    assert does(mod, task(), at)
    assert does(FrozenMod(), task(), at), "a new process has the context's state"
    assert not does(FrozenMod(), task(), context())


def test_one_version_is_kept_and_no_other():
    mod, at = FrozenMod(), context()
    assert does(mod, task(brings=True), at)
    size = len(at.state.array_records)
    assert not does(mod, task(OTHER), at)
    assert does(mod, task(OTHER, brings=True), at)
    assert len(at.state.array_records) == size
    assert not does(FrozenMod(), task(), at)


def test_simulated_devices_share_what_the_process_has():
    mod, at = FrozenMod(), context()
    assert does(mod, task(brings=True, device=3), at)
    assert at.state == RecordDict()
    assert does(mod, task(device=4), context())
    assert not does(FrozenMod(), task(device=3), at)


@pytest.mark.parametrize("mine", [STATE, mlp()], ids=["state", "module"])
def test_a_client_that_has_the_model_needs_nothing(mine):
    mod, at = FrozenMod(own(mine)), context()
    assert does(mod, task(), at)
    assert at.state == RecordDict()


def test_what_it_has_is_asked_for_once_and_not_changed_by_the_client():
    model, calls = mlp(), []

    def mine(context):
        calls.append(context)
        return model

    mod, at = FrozenMod(mine), context()
    for _ in range(2):
        assert does(mod, task(), at)
        load_submodel(model, wire.to_record(mlp(seed=4).state_dict()))
    assert len(calls) == 1


@pytest.mark.parametrize(
    "mine",
    [
        {**STATE, "0.bias": STATE["0.bias"] + 1e-7},
        {**STATE, "0.bias": STATE["0.bias"].double()},
        {name: t for name, t in STATE.items() if name != "0.bias"},
        {**STATE, "another": torch.zeros(1)},
    ],
    ids=["values", "dtype", "fewer", "more"],
)
def test_a_client_with_another_model_asks(mine):
    mod, at = FrozenMod(own(mine)), context()
    assert not does(mod, task(), at)
    assert does(mod, task(brings=True), at)
    assert does(mod, task(), at)


def test_what_is_damaged_on_the_way_is_not_used():
    message = task(brings=True)
    brought = {**wire.to_record(FROZEN.tensors), **wire.to_record(OTHER.tensors)}
    message.content[wire.FROZEN_RECORD] = type(message.content["arrays"])(brought)
    at = context()
    assert not does(FrozenMod(), message, at)
    assert at.state == RecordDict()


def test_what_is_damaged_in_the_state_is_not_used():
    mod, at = FrozenMod(), context()
    assert does(mod, task(brings=True), at)
    (key,) = at.state.array_records
    at.state[key] = wire.to_record(OTHER.tensors)
    assert not does(FrozenMod(), task(), at)


def test_a_client_that_trains_what_is_frozen_is_told_so():
    def trains(message, context):
        state = wire.from_record(message.content["arrays"])
        return answer(message, {name: tensor + 1 for name, tensor in state.items()})

    with pytest.raises(ConfigError, match=r"'0.(weight|bias)'.*requires_grad_"):
        call(FrozenMod(), task(brings=True), context(), trains)


def test_an_error_of_the_client_passes():
    def fails(message, context):
        return Message(Error(3, "it raised"), reply_to=message)

    done, reply = call(FrozenMod(), task(brings=True), context(), fails)
    assert done
    assert reply.has_error()


@pytest.mark.parametrize("codec", [False, True], ids=["alone", "behind a codec mod"])
@pytest.mark.parametrize("raises", [False, True], ids=["an error", "an exception"])
def test_a_mod_before_it_may_try_again(raises, codec):
    """The message is then as it came, whatever has become of the first attempt."""
    attempts = []

    def flaky(message, context):
        attempts.append(list(message.content["arrays"]))
        if len(attempts) > 1:
            return client(message, context)
        if raises:
            raise RuntimeError("out of memory")
        return Message(Error(3, "out of memory"), reply_to=message)

    def once(message, context):
        try:
            return FrozenMod(own(STATE))(message, context, flaky)
        except RuntimeError:
            return Message(Error(3, "out of memory"), reply_to=message)

    message = task()
    if codec:
        coding = wire.Coding("q8", "q8", 1, 2, feedback=True)
        message.content["config"].update(coding.entries(KEYS.arrays, "one"))
    for fails in (True, False):
        mods = [CodecMod()] if codec else []
        reply = with_mods(once, mods)(message, context())
        assert reply.has_error() == fails
    assert set(reply.content["arrays"]) == TRAINED.keys()
    assert attempts == [list(STATE)] * 2


def test_a_codec_mod_on_both_sides_of_it():
    """As in a ClientApp that has one for all its functions, and one for training."""
    coding = wire.Coding("q8", "q8", 1, 2)
    state = {name: tensor.repeat(64, 1) for name, tensor in STATE.items()}
    trained, frozen = split(state, FROZEN.tensors.keys())
    entries = coding.entries(KEYS.arrays, "one")
    message = wire.make_task(
        wire.encode_weights(trained, coding),
        {**entries, **wire.frozen_entries(frozen, KEYS.arrays)},
        wire.TaskConfig(1, 0),
        node_id=5,
        keys=KEYS,
    )

    def replies(message, context):
        return answer(message, wire.from_record(message.content["arrays"]))

    mods = [CodecMod(), FrozenMod(own(state)), CodecMod()]
    reply = with_mods(replies, mods)(message, context())
    assert set(reply.content["arrays"]) == TRAINED.keys()
    stypes = {each.stype for each in reply.content["arrays"].values()}
    assert any(stype.endswith("q8") for stype in stypes), "it is coded once"


def test_personal_layers_on_a_frozen_backbone():
    """Units of the frozen layer and of the personal head follow from one mask."""
    plan = plan_submodels(mlp(), torch.zeros(1, 4))
    mod, at = FrozenMod(own(STATE)), context()

    def trains(message, context):
        model = load_submodel(mlp(seed=9), message.content["arrays"])
        load_personal(context, model, message, "2", "0")
        before = model[2].weight.detach().clone()
        with torch.no_grad():
            model[2].weight += 1
        save_personal(context, model, message, "2", "0")
        reply = answer(message, model.state_dict())
        reply.content["before"] = wire.to_record({"2.weight": before})
        return reply

    def indices(*units):
        return plan.indices((torch.tensor(units), torch.arange(5)))

    call(mod, task(indices=indices(0, 1, 2, 4)), at, trains)
    _, reply = call(mod, task(indices=indices(1, 2, 3)), at, trains)
    found = wire.from_record(reply.content["before"])["2.weight"]
    expected = STATE["2.weight"][:, [1, 2, 3]] + torch.tensor([1.0, 1, 0])
    torch.testing.assert_close(found, expected)
