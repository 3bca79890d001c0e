"""A Flower mod that keeps on the device what does not train."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from flwr.app import ArrayRecord, Context, Message, MessageType
from torch import Tensor, nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.client.mods import (
    AnyMod,
    ClientAppCallable,
    Mod,
    inner_clipping,
    outer_mod,
    with_mods,
)
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import type_of
from flwr_asyncdrop.submodel import State, content_hash

logger = logging.getLogger("flwr.asyncdrop")

Own: TypeAlias = nn.Module | Mapping[str, Tensor]
"""A model, or its ``state_dict``."""


class FrozenMod(Mod):
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
    train_mods : sequence of mods
        Mods of training that see nothing but what trains, such as Flower's
        ``LocalDpMod``, whose noise no frozen tensor may get. They are called for
        training alone, also if all of the model trains.

    Raises
    ------
    ConfigError
        If `own` is a model, or `train_mods` is no sequence of mods.
    """

    def __init__(
        self,
        own: Callable[[Context], Own] | None = None,
        *,
        train_mods: Sequence[AnyMod] = (),
    ) -> None:
        _check_own(own)
        _check_mods(train_mods)
        self._own = own
        self._train_mods = list(train_mods)
        self._known: dict[str, ArrayRecord] = {}  # one at the most, by its hash
        self._not_finite: dict[str, str] = {}  # so is a tensor in it, "" for none

    def __call__(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Complete a message, or reply that the device lacks the frozen tensors."""
        part = wire.read_frozen(message)
        if part is None:
            return self._behind_mods(message, call_next)(message, context)
        frozen = self._find(part, message, context)
        if frozen is None:
            if name := outer_mod():
                raise ConfigError(
                    f"{name} wants arrays in each reply, and this one asks for what "
                    "does not train: hand it to the mod behind it, "
                    "FrozenMod(train_mods=[...]) (docs/frozen.md)"
                )
            return wire.ask_for_frozen(message, part.sha256)

        if self._is_task(message):
            self._check_clipping(call_next, part.sha256, frozen)
        message.content = wire.without_brought(message.content)
        app = _completing(call_next, part, frozen)
        return self._behind_mods(message, app)(message, context)

    def _behind_mods(
        self, message: Message, app: ClientAppCallable
    ) -> ClientAppCallable:
        """Return an app behind the mods of training, if this is a task."""
        return with_mods(app, self._train_mods) if self._is_task(message) else app

    @staticmethod
    def _is_task(message: Message) -> bool:
        is_train = wire.kind_of(message) == MessageType.TRAIN
        return is_train and not wire.is_probe(message)

    def _check_clipping(
        self, app: ClientAppCallable, sha256: str, frozen: ArrayRecord
    ) -> None:
        """Raise ConfigError for a mod that clips by a length that is no number."""
        name = inner_clipping(app)
        if not name:
            return
        if sha256 not in self._not_finite:
            self._not_finite = {sha256: _not_finite(frozen)}
        if odd := self._not_finite[sha256]:
            raise ConfigError(
                f"{name} clips nothing where {odd!r}, which does not train, has NaN or "
                "infinity: hand it to the mod before it, FrozenMod(train_mods=[...]) "
                "(docs/frozen.md)"
            )

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
        if not isinstance(own, nn.Module | Mapping):
            raise ConfigError(
                f"the function of FrozenMod(own=...) returned {type_of(own)}: return "
                "the model, or its state_dict"
            )
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


def _completing(
    app: ClientAppCallable, part: wire.FrozenPart, frozen: ArrayRecord
) -> ClientAppCallable:
    """Return an app that gets whole models, and replies without what is frozen."""

    def complete(message: Message, context: Context) -> Message:
        came = message.content
        message.content, used = wire.completed(message, part, frozen)
        failed = True
        try:
            reply = app(message, context)
            if not reply.has_error():
                reply.content = wire.without_frozen(reply.content, used)
                failed = False
        finally:
            if failed:  # a mod before this one may try again
                message.content = came
        return reply

    return complete


def _check_own(own: object) -> None:
    if own is None or (callable(own) and not isinstance(own, nn.Module | type)):
        return
    what = f"the class {own.__name__}" if isinstance(own, type) else type_of(own)
    raise ConfigError(
        f"FrozenMod(own=...) is {what}: pass a function of the context that returns "
        "the model, FrozenMod(lambda context: Net())"
    )


def _check_mods(mods: object) -> None:
    if not isinstance(mods, Sequence):
        raise ConfigError(
            f"FrozenMod(train_mods=...) is {type_of(mods)}: pass a list of mods"
        )
    for mod in mods:
        if isinstance(mod, type) or not callable(mod):
            name = mod.__name__ if isinstance(mod, type) else type_of(mod)
            raise ConfigError(
                f"FrozenMod(train_mods=[...]) has {name} in it, which is no mod: pass "
                "functions, and objects such as LocalDpMod(...)"
            )
        if isinstance(mod, Mod):
            raise ConfigError(
                f"FrozenMod(train_mods=[...]) has {type_of(mod)} in it, which "
                "evaluations and probes need, too: put it before, "
                f"ClientApp(mods=[{type(mod).__name__}(...), FrozenMod(...)])"
            )


def _not_finite(frozen: ArrayRecord) -> str:
    """Return the name of a tensor with a value that is no finite number, or ""."""
    tensors = wire.from_record(frozen).items()
    return next((name for name, each in tensors if not each.isfinite().all()), "")


def _checked(state: State, sha256: str) -> ArrayRecord | None:
    """Return tensors for the wire; None if they are others than this hash says."""
    return wire.to_record(state) if content_hash(state) == sha256 else None


def _keep(context: Context, sha256: str, frozen: ArrayRecord) -> None:
    """Keep the frozen tensors of this version, and of no other, on the device."""
    for key in [k for k in context.state if k.startswith(wire.FROZEN_KEY)]:
        del context.state[key]
    context.state[wire.FROZEN_KEY + sha256] = frozen
