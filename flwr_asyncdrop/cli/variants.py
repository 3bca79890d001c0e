"""What is compared: every algorithm, with every combination of what varies."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import (
    SCOPED,
    RunConfig,
    Value,
    has_scope,
    key_table,
    needless,
)
from flwr_asyncdrop.cli.presets import Preset, num_rounds
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import details
from flwr_asyncdrop.paths import as_folder_name

MOST_VARIANTS = 1000
_LONGEST_LABEL = 255  # bytes of a folder's name


@dataclass(frozen=True)
class Variant:
    """One algorithm with one run-config, for several seeds.

    The label says what tells it from the others: ``"asyncdrop,drop-rate=0.5"``.
    """

    label: str
    settings: dict[str, Value]


def build_variants(
    algorithms: Iterable[str],
    preset: Preset,
    explicit: Mapping[str, Value],
    vary: Mapping[str, Sequence[Value]],
    tuned: Callable[[str], Mapping[str, Value]] = lambda name: {},
) -> list[Variant]:
    """Combine algorithms with the values of the keys that vary.

    An algorithm does not get a key that means nothing to it; one that means nothing to
    any of them is a ConfigError. `explicit` overrides the preset, what is `tuned` for
    an algorithm both, and `vary` all.
    """
    algorithms = list(dict.fromkeys(algorithms))
    if (num := len(algorithms) * prod(map(len, vary.values()))) > MOST_VARIANTS:
        raise ConfigError(
            f"{num:,} variants are more than {MOST_VARIANTS:,}: vary less"
        )
    variants = []
    for name, known in meaningful(algorithms, (*explicit, *vary)).items():
        own = {key: value for key, value in explicit.items() if key in known}
        axes = [
            [(key, value) for value in values]
            for key, values in vary.items()
            if key in known
        ]
        for values in map(dict, product(*axes)):
            settings = {**own, **tuned(name), **values, "algo": name}
            made = preset_settings(preset, settings)
            variants.append(variant_of(name, made, values))
    return variants


def meaningful(
    algorithms: Sequence[str], keys: Sequence[str]
) -> dict[str, frozenset[str]]:
    """Return which of some keys mean something to each algorithm.

    ConfigError for one that means nothing to any.
    """
    found = {
        name: frozenset(keys) - _meaningless(name, algorithms) for name in algorithms
    }
    for key in keys:
        if not any(key in known for known in found.values()):
            raise ConfigError(
                f"{key} means nothing to {', '.join(found)}: leave it out, or add an "
                "algorithm to which it does"
            )
    return found


def variant_of(
    name: str, settings: dict[str, Value], values: Mapping[str, Value]
) -> Variant:
    """Return the variant of an algorithm that some values tell from the others."""
    parts = [
        algorithm(name).label(),
        *(f"{k}={value_text(v)}" for k, v in values.items()),
    ]
    # It is the name of a folder too.
    label = as_folder_name(",".join(parts))
    if not label.strip(" ."):
        raise ConfigError(
            f"{name} calls itself {label!r}, and no folder can have that name: give "
            "the class another one"
        )
    if (size := len(os.fsencode(label))) > _LONGEST_LABEL:
        raise ConfigError(
            f"{', '.join(values)} make a label of {size} bytes, and the folder of that "
            f"name can have {_LONGEST_LABEL}: give those with one value as flags"
        )
    return Variant(label, settings)


def preset_settings(preset: Preset, explicit: Mapping[str, Value]) -> dict[str, Value]:
    """Return the run-config of a preset, with keys that override it.

    What means nothing to the algorithm, or beside the keys that override it, is left
    out of the preset; if it was given, it is a ConfigError.
    """
    ignored = _meaningless(str(explicit.get("algo", RunConfig.algo)))
    own = {key: value for key, value in preset.settings.items() if key not in ignored}
    for _, keys, _ in needless(RunConfig.read({**own, **explicit})):
        own = {key: value for key, value in own.items() if key not in keys}
    settings = {**own, **explicit}
    config = RunConfig.parse(settings)
    if preset.epochs and preset.samples and "num-rounds" not in settings:
        settings["num-rounds"] = num_rounds(config, preset.epochs, preset.samples)
    return settings


def _meaningless(name: str, beside: Iterable[str] = ()) -> frozenset[str]:
    """Return the run-config keys, of all algorithms, that one has no use for."""
    kind = algorithm(name)
    ignored = {
        key.name
        for key in key_table(name, *beside).values()
        if key.own is not None and key.field not in details(kind)
    }
    return frozenset(ignored if has_scope(kind) else ignored.union(SCOPED))


def value_text(value: Value) -> str:
    """Return a value as `Key.read` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
