"""What an object, or a function, of a user's keeps: by name."""

from functools import partial
from types import FunctionType, MethodType
from typing import Any

from flwr_asyncdrop.completeness.contents import (
    attributes,
    is_cached,
    is_own,
    of_classes,
)
from flwr_asyncdrop.overrides import stored_by_package


def is_users(owner: object) -> bool:
    """Return whether a function, or the class of an object, is a user's own."""
    return is_users(_called(owner)) if isinstance(owner, partial) else is_own(owner)


def kind_of(owner: object) -> str:
    """Return what an object is called in messages."""
    if isinstance(owner, partial):
        return kind_of(_called(owner))
    if isinstance(owner, FunctionType):
        return f"the function {owner.__name__}"
    return type(owner).__name__


def held_by(owner: Any) -> dict[str, object]:
    """Return what an object or a function keeps, by the name that messages give it.

    What a `cached_property` has made is derived, and what methods of this package keep
    is saved by these.
    """
    kind = kind_of(owner)
    if isinstance(owner, partial):
        given = {f"an argument of {kind}": (owner.args, owner.keywords)}
        return {**given, **held_by(_called(owner))}
    found = dict(attributes(owner))
    if isinstance(owner, FunctionType):
        around = owner.__code__.co_freevars
        called = {name: f"the variable {name}" for name in around}
        return {f"{called.get(n, n)} of {kind}": found[n] for n in found}
    for _, name, held in of_classes(owner):
        found.setdefault(name, held)
    of: Any = type(owner)
    ours = stored_by_package(of)
    return {
        f"{kind}.{name}": held
        for name, held in found.items()
        if name not in ours and not is_cached(owner, name)
    }


def _called(function: "partial[Any]") -> object:
    """Return what a partial function calls: of a method, its object."""
    inner = function.func
    return inner.__self__ if isinstance(inner, MethodType) else inner
