"""The keys of a run-config, read from the dataclasses whose fields they are."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from functools import lru_cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import (
    ANY,
    Details,
    Range,
    details,
    read_integer,
    read_number,
)

Value = bool | int | float | str

LEFT_OUT = ""
"""The value of a hyperparameter that is left out: the algorithm has its own."""

_KINDS = (bool, int, float, str)
_READERS: Mapping[type, Callable[[str], Value]] = {
    int: read_integer,
    float: read_number,
    str: str,
}
_LARGEST = 2**63 - 1  # as in TOML


@dataclass(frozen=True)
class Key:
    """One key of a run-config; its name has dashes, e.g. ``"drop-rate"``.

    `own` has a hyperparameter's default by algorithm.
    """

    name: str
    kind: type[Value]
    default: Value
    details: Details
    own: Mapping[str, Any] | None = None

    @property
    def field(self) -> str:
        """The dataclass field that it is."""
        return self.name.replace("-", "_")

    @property
    def meaning(self) -> str:
        """What it means, after the names that it takes."""
        choices = " | ".join(self.details.range.choices)
        listed = " | " in self.details.help or not choices
        return self.details.help if listed else f"{choices}: {self.details.help}"

    @property
    def shown_default(self) -> str:
        """Its default, for people: the most common one of the algorithms first."""
        if self.own is None:
            return repr(self.default)
        shown = {name: _shown(value) for name, value in self.own.items()}
        common = Counter(shown.values()).most_common(1)[0][0]
        others = [f"{name} {text}" for name, text in shown.items() if text != common]
        return "; ".join([common, *others])

    @property
    def help(self) -> str:
        """What it means, with its default."""
        default = self.shown_default
        return f"{self.meaning} (default: {default})" if default else self.meaning

    def typed(self, value: object) -> Value:
        """Return a value as one of its kind; an integer will do for a float."""
        if type(value) is int and self.kind in (int, float):
            if abs(value) > _LARGEST:
                raise ConfigError(f"{self.name}={value} must fit into 64 bits")
            return self.kind(value)
        if type(value) is not self.kind:
            raise ConfigError(f"{self.name}={value!r} must be {self._wanted}")
        return value

    def read(self, text: str) -> Value:
        """Read a value from text; "" leaves a hyperparameter out."""
        if self.own is not None and text == LEFT_OUT:
            return LEFT_OUT
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text]
            return _READERS[self.kind](text)
        except (KeyError, ValueError):
            raise ConfigError(f"{self.name}={text!r} must be {self._wanted}") from None

    @property
    def _wanted(self) -> str:
        names: dict[type, str] = {str: "a string in quotes", bool: "true or false"}
        return names.get(self.kind, f"a number ({self.kind.__name__})")


@lru_cache
def keys_of(kind: type) -> Mapping[str, Key]:
    """Return a key for each field of a dataclass that a run-config can give."""
    try:
        hints = get_type_hints(kind)
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise ConfigError(
            f"the types of the fields of {kind.__name__} cannot be read ({error}): "
            "write bool, int, float or str"
        ) from error
    found, section = {}, ""
    for name, (entry, known) in details(kind).items():
        section = known.section or section
        value_kind = _kind(hints[name])
        if value_kind is not None and entry.init:
            key = name.replace("_", "-")
            values = _literals(hints[name]) if known.range is ANY else known.range
            about = Details(known.help, values, section, known.affects)
            default: Any = entry.default  # or MISSING, in an algorithm from outside
            found[key] = Key(key, value_kind, default, about)
    return MappingProxyType(found)


def hyperparameter_keys(
    algorithms: Iterable[type[Algorithm]], section: str
) -> dict[str, Key]:
    """Return the union of the keys of some algorithms, all with the default ""."""
    found: dict[str, Key] = {}
    for kind in algorithms:
        for name, key in keys_of(kind).items():
            others = found[name].own if name in found else None
            own = {**(others or {}), kind.label(): key.default}
            about = Details(key.details.help, key.details.range, section)
            found[name] = Key(name, key.kind, LEFT_OUT, about, own)
    return found


def _kind(hint: Any) -> type[Value] | None:
    """Return the type of a field's values; None if no run-config can hold them."""
    hint = _of_the_given(hint)
    if get_origin(hint) is Literal:
        hint = type(get_args(hint)[0])
    return hint if hint in _KINDS else None


def _of_the_given(hint: Any) -> Any:
    """Return the type of the values that are not None, the first one of a union."""
    if get_origin(hint) in (Union, UnionType):
        return next(each for each in get_args(hint) if each is not NoneType)
    return hint


def _literals(hint: Any) -> Range:
    """Return the range of a field whose type names its values, else any."""
    hint = _of_the_given(hint)
    if get_origin(hint) is not Literal:
        return ANY
    values = get_args(hint)
    choices = tuple(map(str, values))
    return Range(lambda v: v in values, f"one of {', '.join(choices)}", choices)


def _shown(value: object) -> str:
    if value is None or value is MISSING:
        return ""
    return repr(round(value, 4) if isinstance(value, float) else value)
