"""Attributes of a subclass that have no effect, or take the place of this package's.

``class Half(AsyncDrop): drop_rate = 0.5`` without the decorator of dataclasses is an
algorithm with the rate of `AsyncDrop`: Python says nothing. Nor does it where a
subclass has a ``_run`` of its own, and its base class has another one.
"""

import sys
from collections.abc import Collection, Iterator
from dataclasses import Field, fields, is_dataclass
from dis import get_instructions
from functools import cache
from inspect import get_annotations, getattr_static
from types import FunctionType
from typing import Any, ClassVar, get_origin

from flwr_asyncdrop.exceptions import ConfigError

_PACKAGE = __name__.partition(".")[0]
_OWN_FIELDS = "__dataclass_fields__"
# Packages whose classes are no user's, beside this one.
_KNOWN = frozenset({"flwr", "torch", *sys.stdlib_module_names})
_MACHINERY = ("_abc_", "_is_protocol", "_is_runtime_protocol")


def check_overrides(instance: object) -> None:
    """Raise ConfigError for a class attribute that has no effect on an instance.

    In a dataclass it is a value for a field that no decorator has seen. In other
    classes it is one that the ``__init__`` of this package's base class has replaced.
    So it does for what is no function in the place of a method.
    """
    kind: Any = type(instance)
    check_methods(instance)
    if is_dataclass(kind):
        check_fields(type(instance))
        return
    attributes = getattr(instance, "__dict__", {})
    for owner, name, parent in _replaced(kind):
        was = vars(owner)[name]
        now = attributes.get(name, was)
        if now is not was and now != was:
            raise ConfigError(
                f"{name} = {was!r} of {owner.__name__} has no effect, as "
                f"{parent.__name__}(...) sets it to {now!r}: set self.{name} in an "
                "__init__, after super().__init__(...)"
            )


def check_fields(kind: type) -> None:
    """Raise ConfigError for a value, or a type, that a dataclass takes no field from.

    Methods, properties and class variables are no fields, and may be overridden without
    a decorator.
    """
    if not is_dataclass(kind):
        return
    known = {entry.name: entry for entry in fields(kind)}
    seen: set[str] = set()
    for owner in kind.__mro__[:-1]:
        declared = get_annotations(owner)
        own = _OWN_FIELDS in vars(owner)
        for name in vars(owner).keys() & known.keys() - seen:
            value = vars(owner)[name]
            if not (own and name in declared) and not hasattr(type(value), "__set__"):
                raise ConfigError(_unseen(kind, owner, known[name], value))
        if not own and issubclass(owner, _with_fields(owner)):
            _check_new(owner, declared, known)
        seen |= vars(owner).keys() | declared.keys()


def check_methods(instance: object) -> None:
    """Raise ConfigError for what an object has in the place of a method, and is none.

    ``self.extra = {}`` of an aggregator hides the method that the loop calls. In the
    place of a private method nothing may be set, no function either.
    """
    attributes = getattr(instance, "__dict__", {})
    for owner in type(instance).__mro__:
        if not _is_ours(owner):
            continue
        for name, method in vars(owner).items():
            if not isinstance(method, FunctionType) or name.startswith("__"):
                continue
            if name in attributes and _is_private(name):
                raise ConfigError(_taken(type(instance), name, owner))
            found = getattr_static(instance, name)
            if not callable(found) and not hasattr(type(found), "__get__"):
                raise ConfigError(
                    f"{name} of {type(instance).__name__} is no function, and hides "
                    f"the method {name} of {owner.__name__}: give it another name"
                )


def check_names(kind: type, but: Collection[str] = ()) -> None:
    """Raise ConfigError for a private name of this package's that a subclass has, too.

    `kind` has classes of this package above it. What a class has are its attributes,
    and those that its methods set. Of some names, `but` them, somebody else tells.
    """
    for owner in kind.__mro__:
        is_known = owner.__module__.partition(".")[0] in _KNOWN
        if _is_ours(owner) or (is_known and is_in_its_module(owner)):
            continue
        mine = vars(owner).keys() | _stored(owner)
        for parent in filter(_is_ours, kind.__mro__):
            taken = vars(parent).keys() | _stored(parent)
            for name in sorted(filter(_is_private, mine & taken - set(but))):
                raise ConfigError(_taken(owner, name, parent))


def check_no_fields(instance: object, made: Any) -> None:
    """Raise ConfigError for what a class sets, and takes as an argument instead.

    `made` is the dataclass that was made of such arguments; None for none. A class may
    pass what it sets.
    """
    names = {entry.name for entry in fields(made)} if is_dataclass(made) else set()
    for owner in type(instance).__mro__:
        for name in sorted(vars(owner).keys() & names):
            value = vars(owner)[name]
            now = getattr(made, name)
            differs = now is not value and now != value
            if differs and not hasattr(type(value), "__get__"):
                raise ConfigError(
                    f"{name} = {value!r} of {owner.__name__} has no effect, as it is "
                    f"an argument: pass it, {type(instance).__name__}({name}="
                    f"{value!r})"
                )


def is_in_its_module(kind: type) -> bool:
    """Return whether a class is found by its name in the module that it says.

    A class that ``type(name, bases, {})`` makes says the module in which that is
    called: for bases with the metaclass of ``abc``, that one.
    """
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


@cache
def named_by_package(kind: type) -> frozenset[str]:
    """Return what the ``__init__`` of this package's classes above a class name."""
    ours = (owner for owner in kind.__mro__ if _is_ours(owner))
    return frozenset(name for owner in ours for name in _named(owner))


@cache
def stored_by_package(kind: type) -> frozenset[str]:
    """Return the attributes that methods of this package set in its classes above."""
    ours = (owner for owner in kind.__mro__ if _is_ours(owner))
    return frozenset[str]().union(*map(_stored, ours))


@cache
def _stored(owner: type) -> frozenset[str]:
    """Return the attributes that methods of a class set, of whatever object."""
    return frozenset(
        step.argval
        for method in vars(owner).values()
        if isinstance(method, FunctionType)
        for step in get_instructions(method)
        if step.opname == "STORE_ATTR"
    )


def _taken(owner: type, name: str, parent: type) -> str:
    """Return that a private name of `parent`'s is taken."""
    return (
        f"{owner.__name__} has an attribute {name}, and {parent.__name__} has another "
        "one of that name for itself: give it another name"
    )


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", *_MACHINERY))


def _with_fields(owner: type) -> tuple[type, ...]:
    """Return the dataclasses that a class inherits from."""
    return tuple(each for each in owner.__mro__[1:] if _OWN_FIELDS in vars(each))


def _check_new(owner: type, declared: dict[str, Any], known: dict[str, Any]) -> None:
    """Raise ConfigError for what looks like a field of a class that has no decorator.

    What a parent has as a class variable is overridden, with or without a type.
    """
    inherited = {name for parent in owner.__mro__[1:] for name in vars(parent)}
    typed = {name for name, kind in declared.items() if not _is_class_variable(kind)}
    made = {name for name, value in vars(owner).items() if isinstance(value, Field)}
    for name in sorted((typed | made) - (inherited - known.keys())):
        raise ConfigError(
            f"{name} of {owner.__name__} is no field: put {_decorator(owner)} above "
            f"class {owner.__name__}, and give each field its type; what is none is a "
            "ClassVar"
        )


def _unseen(kind: type, owner: type, entry: "Field[Any]", value: object) -> str:
    """Return why a value is not that of a field."""
    default = value.default if isinstance(value, Field) else value
    plain = default is not None and not callable(default) and not hasattr(value, "func")
    shown = f" = {default!r}" if plain else ""
    kind_of = getattr(entry.type, "__name__", entry.type)
    typed = f"{entry.name}: {kind_of}{shown or ' = ...'}"
    problem = (
        f"{entry.name}{shown} of {owner.__name__} has no effect, as the field "
        f"{entry.name} of {kind.__name__} is set from another default"
    )
    if _OWN_FIELDS in vars(owner):
        return f"{problem}: give it its type, as in {typed}"
    if not _with_fields(owner):
        return f"{problem}: set it in class {kind.__name__} itself, as in {typed}"
    return (
        f"{problem}: put {_decorator(owner)} above class {owner.__name__}, and give it "
        f"its type, as in {typed}"
    )


def _decorator(owner: Any) -> str:
    frozen = owner.__dataclass_params__.frozen
    return "@dataclass(frozen=True)" if frozen else "@dataclass"


def _is_class_variable(annotation: object) -> bool:
    if isinstance(annotation, str):
        return "ClassVar" in annotation
    return ClassVar in (annotation, get_origin(annotation))


@cache
def _replaced(kind: type) -> tuple[tuple[type, str, type], ...]:
    """Return the class attributes of subclasses that an ``__init__`` of ours sets, too.

    Each is the subclass, the attribute, and the class of ours that is nearest to it,
    which has inherited that ``__init__`` or calls it. A subclass whose own ``__init__``
    names the attribute has the last word.
    """
    return tuple(_find_replaced(kind))


def _find_replaced(kind: type) -> Iterator[tuple[type, str, type]]:
    seen: set[str] = set()
    own: set[str] = set()
    for place, owner in enumerate(kind.__mro__):
        if _is_ours(owner):
            return
        own |= _named(owner)
        ours = [parent for parent in kind.__mro__[place + 1 :] if _is_ours(parent)]
        set_by_ours = set().union(*map(_named, ours))
        for name in (vars(owner).keys() - seen - own) & set_by_ours:
            yield owner, name, ours[0]
        seen |= vars(owner).keys()


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _PACKAGE


def _named(kind: type) -> set[str]:
    """Return the attributes, among others, that the ``__init__`` of a class names."""
    code = getattr(vars(kind).get("__init__"), "__code__", None)
    return set() if code is None else set(code.co_names)
