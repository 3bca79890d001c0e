"""A Flower mod that keeps on the device what does not train."""

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.submodel import State, content_hash

logger = logging.getLogger("flwr.asyncdrop")

Own: TypeAlias = nn.Module | Mapping[str, Tensor]
"""A model, or its ``state_dict``."""

ClientAppCallable = Callable[[Message, Context], Message]
"""A ClientApp, or the rest of it behind a mod."""


class FrozenMod:
    """Puts what does not train into each task, and takes it out of each reply.

    It goes into the ClientApp of a strategy that trains only a part of the model, after
    a mod that decodes messages: ``ClientApp(mods=[FrozenMod()])``. Tasks then travel
    without the frozen tensors, and the client still gets whole models, and returns
    them. A reply in which a frozen tensor has changed raises a ConfigError.

    The frozen tensors are known by their SHA-256. A device that has not got them says
    so, gets them once, and keeps them in ``context.state``; a device that is simulated,
    in this process.

    Parameters
    ----------
    own : callable, optional
        Returns, from the ``Context``, the model that this device has already, or its
        ``state_dict``, at full size. If its tensors have that hash, nothing is sent.
    """

    def __init__(self, own: Callable[[Context], Own] | None = None) -> None:
        self._own = own
        self._known: dict[str, ArrayRecord] = {}  # one at the most, by its hash

    def __call__(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Complete a message, or reply that the device lacks the frozen tensors."""
        part = wire.read_frozen(message)
        if part is None:
            return call_next(message, context)
        frozen = self._find(part, message, context)
        if frozen is None:
            return wire.ask_for_frozen(message, part.sha256)
        message.content, used = wire.completed(message, part, frozen)
        reply = call_next(message, context)
        if not reply.has_error():
            reply.content = wire.without_frozen(reply.content, used)
        return reply

    def _find(
        self, part: wire.FrozenPart, message: Message, context: Context
    ) -> ArrayRecord | None:
        """Return the frozen tensors; None if they are not here."""
        wanted = part.sha256
        if wanted in self._known:
            return self._known[wanted]
        if part.brought is not None:
            found = _checked(wire.from_record(part.brought), wanted)
            if found is not None and wire.read_task(message).partition_id is None:
                _keep(context, wanted, found)
        else:
            found = self._kept(context, wanted) or self._of_own(message, context, part)
        if found is not None:
            self._known = {wanted: found}
        return found

    def _kept(self, context: Context, wanted: str) -> ArrayRecord | None:
        record = wire.records_of(context.state, ArrayRecord).get(
            wire.FROZEN_KEY + wanted
        )
        return None if record is None else _checked(wire.from_record(record), wanted)

    def _of_own(
        self, message: Message, context: Context, part: wire.FrozenPart
    ) -> ArrayRecord | None:
        """Return the frozen tensors of the device's own model, if they are the same."""
        if self._own is None:
            return None
        own = self._own(context)
        tensors = own.state_dict() if isinstance(own, nn.Module) else own
        sent = wire.records_of(message.content, ArrayRecord)[part.record]
        state = {
            name: value
            for name, value in tensors.items()
            if isinstance(value, Tensor) and name not in sent
        }
        found = _checked(state, part.sha256)
        if found is None:
            logger.info(
                "the model of FrozenMod(own=...) has other frozen tensors than the "
                "server's: this device asks for those"
            )
        return found


def _checked(state: State, sha256: str) -> ArrayRecord | None:
    """Return tensors for the wire; None if they are others than this hash says."""
    return wire.to_record(state) if content_hash(state) == sha256 else None


def _keep(context: Context, sha256: str, frozen: ArrayRecord) -> None:
    """Keep the frozen tensors of this version, and of no other, on the device."""
    for key in [k for k in context.state if k.startswith(wire.FROZEN_KEY)]:
        del context.state[key]
    context.state[wire.FROZEN_KEY + sha256] = frozen
