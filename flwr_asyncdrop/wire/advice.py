"""The fix for a client that raised, where its own error does not say it."""

from collections.abc import Sequence

from flwr_asyncdrop.submodel.narrowing.narrow import LACKS
from flwr_asyncdrop.wire.npy import CODED

_MOST_CHARACTERS = 100_000
_LEGACY = (
    "the client uses an API that Flower has replaced (NumPyClient, Client, or a mod "
    "of flwr.client.mod): write it with @app.train() of flwr.clientapp.ClientApp, "
    "and take mods from flwr.clientapp.mod (docs/migrating.md)"
)
_SLICED = (
    "the server sends submodels with smaller arrays: for other frameworks than "
    "PyTorch, pass mode='masked' to the strategy"
)

# Flower's mods multiply each tensor's change by a real number.
_WHOLE_NUMBERS = (
    "if it is a mod of Flower that clips: it takes no tensors of whole numbers, so "
    "keep them out of the state_dict (persistent=False), or out of what trains "
    "(trainable=...), with the mod in FrozenMod(train_mods=[...]) (docs/robustness.md)"
)

WANTS_ONE_RECORD = "expects exactly one ArrayRecord, but found"
"""What Flower's mods that read arrays say of none, and of several records."""

_OF_TRAINING = (
    "this mod looks for arrays in the replies to evaluations, too: put it into "
    "@app.train(mods=[...]) (docs/robustness.md)"
)
_MISMATCH = "size mismatch for"
_EVALUATES = (
    "an evaluation gets the full model: a client that keeps its model from task to "
    "task loads it by load_submodel here, too, and one that keeps layers takes "
    "load_personal and save_personal (docs/migrating.md#personal-layers)"
)

INCOMPLETE = (LACKS, "Missing key(s) in state_dict")
"""How load_submodel and PyTorch say that tensors are missing."""

_OF_ALL = (
    "if the strategy trains only a part of the model, evaluations are without the "
    "rest, too: put the mod into ClientApp(mods=[FrozenMod()]), and not into "
    "@app.train alone (docs/frozen.md)"
)

# Words of an error, and the fix.
_KNOWN: Sequence[tuple[str, str]] = (
    (
        "loading state_dict for Peft",
        "the server sends adapters with fewer ranks: in the client, call "
        "flwr_asyncdrop.load_lora(model, message.content['arrays']) in place of "
        "set_peft_model_state_dict(...) (docs/lora.md)",
    ),
    (
        _MISMATCH,
        "the server sends submodels with smaller tensors: in the client, call "
        "flwr_asyncdrop.load_submodel(model, message.content['arrays']) in place of "
        "model.load_state_dict(...); for layers that it keeps from task to task, "
        "load_personal and save_personal (docs/migrating.md#personal-layers)",
    ),
    ("fitins.parameters", _LEGACY),
    ("evaluateins.parameters", _LEGACY),
    (
        "secaggplus_configs",
        "secure aggregation adds up the updates of a whole round, and these are merged "
        "one by one: leave secaggplus_mod out, or keep Flower's own workflow "
        "(docs/robustness.md)",
    ),
    (
        f"'{CODED}",
        "the server compresses the arrays: add CodecMod() of flwr_asyncdrop to the "
        "client, ClientApp(mods=[CodecMod()]), before mods that read arrays",
    ),
    (
        "requires the key 'clipping_norm'",
        "put the norm into start(train_config={'clipping_norm': ...}), and the mod "
        "into @app.train(mods=[...]), as evaluations have none (docs/robustness.md)",
    ),
    (
        "LocalDpMod.__init__() missing",
        "mods=[LocalDpMod] has the class in it: pass an object, "
        "LocalDpMod(clipping_norm, sensitivity, epsilon, delta)",
    ),
    (
        WANTS_ONE_RECORD,
        "this mod takes one record of arrays, both ways: let the client return exactly "
        "one, and leave the mod out if the algorithm sends records beside the model",
    ),
    (
        "Message content is None. Use <message>.has_content()",
        "message_size_mod and arrays_size_mod raise this in place of any error behind "
        "them: leave them out to see it",
    ),
    ("Cannot cast ufunc 'multiply' output from dtype('float64') to", _WHOLE_NUMBERS),
    ("numpy boolean subtract", _WHOLE_NUMBERS),
    (
        "unsupported ScalarType BFloat16",
        "NumPy, and so Flower's Array, has no bfloat16: return the .float() of such "
        "tensors, in which they were sent (docs/robustness.md)",
    ),
    (
        "The size of tensor a (",
        "if the client keeps tensors from task to task, such as momentum or SCAFFOLD's "
        "control variates: each task has other units, also where the widths are the "
        "same; load_personal and save_personal keep layers, and "
        "examples/custom-algorithm has SCAFFOLD (docs/migrating.md#personal-layers)",
    ),
    (
        "'proximal-mu'",
        "AsyncFedProx(proximal_mu=...) sends it; with another strategy it goes into "
        "start(train_config=ConfigRecord({'proximal-mu': ...})) (docs/migrating.md)",
    ),
    ("could not broadcast input array", _SLICED),
    ("not compatible with provided weight shape", _SLICED),
)


def advice(reason: str, *, evaluates: bool = False) -> str:
    """Return the fix of a client's error, "" if there is nothing to add to it.

    `evaluates` tells that it was asked to evaluate, not to train. The end of a very
    long reason is read: a traceback ends with what was raised.
    """
    end = reason[-_MOST_CHARACTERS:]
    if evaluates and _MISMATCH in end:
        return _EVALUATES
    if evaluates and WANTS_ONE_RECORD in end:
        return _OF_TRAINING
    if evaluates and any(words in end for words in INCOMPLETE):
        return _OF_ALL
    return next((text for words, text in _KNOWN if words in end), "")
