"""Every run-config key as a flag of the same name."""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import fields
from types import MappingProxyType

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli.descriptions import DESCRIPTIONS
from flwr_asyncdrop.exceptions import ConfigError

Value = bool | int | float | str

DEFAULTS: Mapping[str, Value] = MappingProxyType(
    {field.name.replace("_", "-"): field.default for field in fields(RunConfig)}  # type: ignore[misc]  # all have one
)
"""Every run-config key with its default."""

_TRUTHS = MappingProxyType({"true": True, "false": False})


def add_flags(
    parser: argparse.ArgumentParser, *, without: Collection[str] = ()
) -> None:
    """Give a parser one flag for every run-config key.

    Their values are checked by `RunConfig`, not here, so that a value is refused with
    the same words wherever it comes from.

    Parameters
    ----------
    parser : ArgumentParser
        Gets the flags, in the sections of pyproject's ``[tool.flwr.app.config]``.
    without : collection of str
        Keys that the command sets in another way.
    """
    for section, descriptions in DESCRIPTIONS.items():
        group = parser.add_argument_group(section)
        for key, description in descriptions.items():
            if key not in without:
                _add_flag(group, key, description)


def _add_flag(
    group: argparse._ArgumentGroup,  # argparse has no public name for it
    key: str,
    description: str,
) -> None:
    default = DEFAULTS[key]
    text = f"{description} (default: {default!r})".replace("%", "%%")
    names = ("--out-dir", "--out") if key == "out-dir" else (f"--{key}",)
    if isinstance(default, bool):
        group.add_argument(
            *names,
            help=text,
            default=argparse.SUPPRESS,
            action=argparse.BooleanOptionalAction,
        )
    else:
        group.add_argument(
            *names,
            help=text,
            default=argparse.SUPPRESS,
            type=type(default),
            metavar=type(default).__name__.upper(),
        )


def given(arguments: argparse.Namespace) -> dict[str, Value]:
    """Return the run-config keys, and only those, that were given as flags."""
    named = vars(arguments)
    return {
        key: named[name] for key in DEFAULTS if (name := key.replace("-", "_")) in named
    }


def value_of(key: str, text: str) -> Value:
    """Read the value of a run-config key from text.

    Raises
    ------
    ConfigError
        If there is no such key, or it does not take such a value.
    """
    if key not in DEFAULTS:
        # Which knows how to say it.
        RunConfig.parse({key: text})
    kind = type(DEFAULTS[key])
    try:
        return _TRUTHS[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = "true or false" if kind is bool else f"a number ({kind.__name__})"
        raise ConfigError(f"{key}={text!r} must be {wanted}") from None
