"""Each text that advice goes by is that of an error of the installed versions."""

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.client import mod as legacy_mods
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as mods
from torch import nn

from flwr_asyncdrop import load_submodel
from flwr_asyncdrop.wire import advice as known
from flwr_asyncdrop.wire.advice import advice
from tests.nightly import nightly
from tests.runs import answer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Numbers(NumPyClient):
    """A client of an API that Flower has replaced."""


def call(mod, *, arrays=None, reply=None, kind="train", **config):
    """Call a mod, or an app, with a message as it comes to a client."""
    content = RecordDict({"config": ConfigRecord(config)})
    if arrays is not None:
        content["arrays"] = ArrayRecord(arrays)
    message = Message(content, 1, kind)
    message.metadata.__dict__["_message_id"] = "one"

    def trained(message, context):
        if reply is not None:
            return reply(message)
        state = message.content["arrays"].to_torch_state_dict()
        return answer(message, {name: ~tensor for name, tensor in state.items()})

    context = Context(1, 1, {}, RecordDict(), {})
    if isinstance(mod, ClientApp):
        return mod(message, context)
    return mod(message, context, trained)


def legacy_client(kind):
    return call(ClientApp(client_fn=lambda context: Numbers().to_client()), kind=kind)


def clipped(dtype, **config):
    arrays = {"w": torch.ones(2, dtype=dtype)}
    return call(mods.fixedclipping_mod, arrays=arrays, **config)


def keras_weights():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(6)])
    model.set_weights([np.zeros((4, 3)), np.zeros(3)])


SLOW = "not compatible with provided weight shape"  # it takes long to import Keras
FAILS = {
    "size mismatch for": lambda: nn.Linear(2, 3).load_state_dict(
        nn.Linear(2, 2).state_dict()
    ),
    "fitins.parameters": lambda: legacy_client("train"),
    "evaluateins.parameters": lambda: legacy_client("evaluate"),
    "secaggplus_configs": lambda: call(legacy_mods.secaggplus_mod),
    "'asyncdrop.": lambda: Array("float32", (2,), "asyncdrop.q8", b"12").numpy(),
    "requires the key 'clipping_norm'": lambda: clipped(torch.int64),
    "LocalDpMod.__init__() missing": lambda: call(mods.LocalDpMod),
    known.WANTS_ONE_RECORD: lambda: call(mods.fixedclipping_mod, clipping_norm=1.0),
    "Message content is None. Use <message>.has_content()": lambda: call(
        mods.message_size_mod,
        reply=lambda message: Message(Error(3, "it raised"), reply_to=message),
    ),
    "Cannot cast ufunc 'multiply' output from dtype('float64') to": lambda: clipped(
        torch.int64, clipping_norm=0.01
    ),
    "numpy boolean subtract": lambda: clipped(torch.bool, clipping_norm=0.01),
    "unsupported ScalarType BFloat16": lambda: ArrayRecord(
        {"w": torch.ones(2, dtype=torch.bfloat16)}
    ),
    "The size of tensor a (": lambda: torch.zeros(3) + torch.zeros(4),
    "'proximal-mu'": lambda: ConfigRecord({})["proximal-mu"],
    "could not broadcast input array": lambda: np.copyto(
        np.zeros((6, 4))[:3], np.ones((6, 4))
    ),
    SLOW: keras_weights,
}
ELSEWHERE = {"loading state_dict for Peft"}  # tests/client/test_lora.py


def reason_of(fails):
    """Return what a server hears of an error: one that is raised, or is the reply."""
    try:
        reply = fails()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return reply.error.reason


@pytest.mark.parametrize(
    "words", [nightly(words) if words == SLOW else words for words in FAILS]
)
def test_an_error_of_a_client_is_told_what_to_do(words, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    reason = reason_of(FAILS[words])
    assert words in reason
    assert advice(reason) == dict(known._KNOWN)[words]


def test_no_text_is_left_out():
    assert {words for words, _ in known._KNOWN} == FAILS.keys() | ELSEWHERE


@pytest.mark.parametrize(
    ("fails", "fix"),
    [
        (FAILS["size mismatch for"], "an evaluation gets the full model"),
        (FAILS[known.WANTS_ONE_RECORD], "put it into @app.train(mods=[...])"),
        (lambda: nn.Linear(2, 2).load_state_dict({}), "ClientApp(mods=[FrozenMod()])"),
        (
            lambda: load_submodel(
                nn.Linear(2, 2), ArrayRecord({"weight": torch.ones(2, 2)})
            ),
            "ClientApp(mods=[FrozenMod()])",
        ),
    ],
)
def test_so_it_is_of_one_that_evaluates(fails, fix):
    reason = reason_of(fails)
    assert fix in advice(reason, evaluates=True)
    assert fix not in advice(reason)
