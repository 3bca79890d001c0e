"""A Flower mod that reads what is coded and packed, and answers in kind."""

from collections.abc import Callable, Collection
from contextlib import suppress

from flwr.app import ArrayRecord, Context, Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.client.mods import ClientAppCallable, Mod
from flwr_asyncdrop.client.residuals import Residuals
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.submodel import State, cpu_by_default


class CodecMod(Mod):
    """Lets a ClientApp train with a server whose strategy has a `codec`.

    It goes into the ClientApp, ``ClientApp(mods=[CodecMod()])``, after a `CapacityMod`
    if there is one. The app gets the weights as always, and returns its
    ``state_dict()`` as always; only what travels is smaller. Which codec is used is
    the server's choice, by task. Without one the mod does nothing.
    """

    def __call__(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Unpack and decode a task, pass it on, and code and pack the reply."""
        content = wire.unpacked(message.content)
        if content is message.content:
            return _with_code(message, context, call_next)
        message.content = content
        reply = _with_code(message, context, call_next)
        if not reply.has_error():
            reply.content = wire.packed(reply.content)
        return reply


def _with_code(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Decode a task if it is coded, pass it on, and code the reply then."""
    found = wire.read_coding(message)
    if found is None:
        return call_next(message, context)
    key, coding = found
    records = wire.records_of(message.content, ArrayRecord)
    sent = wire.decode_weights(records.pop(key), coding)
    message.content[key] = wire.to_record(sent)
    run = wire.read_run(message)
    message = wire.without_coding(message)
    reply = call_next(message, context)
    if coding.up and not reply.has_error():
        _code(reply, records, sent, coding, lambda: Residuals(context, message, run))
    return reply


@cpu_by_default()
def _code(
    reply: Message,
    beside: Collection[str],
    sent: State,
    coding: wire.Coding,
    residuals: Callable[[], Residuals],
) -> None:
    """Code the arrays of a reply; one that the server will refuse stays as it is.

    Records `beside` the model, as the server knows them by their keys, are not coded,
    though their arrays may have the same names.

    Without arrays, as where a `FrozenMod` asks for what is frozen, the task was not
    completed, and nobody can read what its device owes.
    """
    records = {
        key: record
        for key, record in wire.records_of(reply.content, ArrayRecord).items()
        if key not in beside and record.keys() == sent.keys()
    }
    if not records:
        return
    key, record = next(iter(records.items()))
    changes = _changes(record, sent)
    is_sound = len(changes) == len(_coded_names(sent))
    owed = residuals()
    changes = owed.added_to(changes)
    coded = wire.encode_changes(changes, sent, coding)
    if is_sound and coding.feedback:  # a refused reply owes what was owed before
        decoded = {
            name: wire.decode_change(array, name, coding)
            for name, array in coded.items()
        }
        owed.keep(changes, decoded)
    elif is_sound and owed:  # by an earlier task with feedback: it is sent by now
        owed.keep(changes, changes)
    reply.content[key] = ArrayRecord({**record, **coded})


def _changes(record: ArrayRecord, sent: State) -> State:
    """Return the changes of the tensors that are coded, but for unsound ones."""
    changes: State = {}
    for name in _coded_names(sent):
        with suppress(ReplyError):
            change = wire.read_change(name, record[name], sent[name])
            changes[name] = change.float()
    return changes


def _coded_names(sent: State) -> list[str]:
    return [
        name
        for name, tensor in sent.items()
        if wire.is_coded(name, tuple(tensor.shape), tensor.dtype)
    ]
