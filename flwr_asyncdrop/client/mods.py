"""What the mods of this package have in common."""

from collections.abc import Callable
from contextlib import suppress
from traceback import walk_stack
from typing import Self

from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.overrides import check_names

ClientAppCallable = Callable[[Message, Context], Message]
"""A ClientApp, or the rest of it behind a mod."""

AnyMod = Callable[[Message, Context, ClientAppCallable], Message]
"""A mod as Flower calls it."""

# Of Flower's mods, those that want arrays in each reply.
_WANT_ARRAYS = {
    fixedclipping_mod.__code__: "fixedclipping_mod",
    adaptiveclipping_mod.__code__: "adaptiveclipping_mod",
    LocalDpMod.__call__.__code__: "LocalDpMod",
}


class Mod:
    """A mod that is an object: Flower calls whatever a list of mods has in it.

    ConfigError if it calls the class.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        check_names(cls)

    def __new__(cls, *arguments: object, **_: object) -> Self:
        """Make the object, unless Flower passes a message."""
        if any(isinstance(each, Message) for each in arguments):
            name = cls.__name__
            raise ConfigError(
                f"mods=[{name}] has the class in it: pass an object, mods=[{name}()]"
            )
        return super().__new__(cls)

    def __init__(self) -> None:
        """Take no arguments, unless a subclass does."""


def outer_mod() -> str:
    """Return the name of a mod of Flower that awaits arrays from its caller, or "".

    Its error of a reply without arrays answers that reply and not the message, so that
    Flower loses it on real devices, and the server hears nothing.
    """
    codes = (frame.f_code for frame, _ in walk_stack(None))
    return next((_WANT_ARRAYS[code] for code in codes if code in _WANT_ARRAYS), "")


def inner_clipping(app: ClientAppCallable) -> str:
    """Return the name of a mod of Flower that clips what an app trains, or ""."""
    found: dict[int, object] = {}
    left: list[object] = [app]
    while left:
        each = left.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        code = getattr(each, "__code__", None)
        if code in _WANT_ARRAYS:
            return _WANT_ARRAYS[code]
        # Mods, and functions of a ClientApp, are what closures of Flower have.
        for cell in getattr(each, "__closure__", None) or ():
            with suppress(ValueError):  # it is empty
                left.append(cell.cell_contents)
    return ""


def with_mods(app: ClientAppCallable, mods: list[AnyMod]) -> ClientAppCallable:
    """Return an app behind mods, the first of which is the outermost."""
    for mod in reversed(mods):
        app = _behind(mod, app)
    return app


def _behind(mod: AnyMod, app: ClientAppCallable) -> ClientAppCallable:
    return lambda message, context: mod(message, context, app)
