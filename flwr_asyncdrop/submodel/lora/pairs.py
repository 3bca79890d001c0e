"""Which arrays are the two factors of an adapter: by their names, or as they are given.

An adapter adds ``B A`` to a frozen weight. Its rank components are the rows of ``A``,
``(r, inputs)``, each with a column of ``B``, ``(outputs, r)``.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TypeAlias

from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.submodel.types import Shapes, owner_of

Pairs: TypeAlias = Sequence[tuple[str, str] | tuple[str, str, int, int]]
"""The names of ``A`` and ``B`` of each adapter, and the dims of both that its rank
components lie along: 0 and 1 where they are left out."""

_FACTOR = re.compile(r"lora_(embedding_)?([AaBb])")
_PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Adapter:
    """Two factors whose product is added to a frozen weight.

    Attributes
    ----------
    name : str
        The module that is adapted, e.g. ``"layers.0.q_proj"``; ``A`` where it has
        several adapters.
    a, b : str
        The names of the factors.
    a_dim, b_dim : int
        The dim of each that its rank components lie along.
    rank : int
        How many rank components it has.
    bias : str or None
        The bias of ``B``: it is no component, and goes only with the whole adapter.
    """

    name: str
    a: str
    b: str
    rank: int
    a_dim: int = 0
    b_dim: int = 1
    bias: str | None = None


def find_adapters(shapes: Shapes, pairs: Pairs | None = None) -> tuple[Adapter, ...]:
    """Return the adapters among arrays of these shapes, in their order.

    Factors are known by the names that PEFT gives them, ``lora_A`` and ``lora_B``,
    ``lora_embedding_A`` and ``lora_embedding_B``, in capital or small letters, or by
    `pairs`.

    Raises
    ------
    ConfigError
        If there is no adapter, a factor lacks the other one, or an array belongs to an
        adapter whose rank components cannot be dropped, as DoRA's magnitudes.
    ShapeError
        If two factors do not fit, or their shapes do not tell the rank.
    """
    found = _named(shapes) if pairs is None else _given(shapes, pairs)
    if not found:
        raise ConfigError(
            "no adapters are among these arrays: name them like PEFT's, lora_A and "
            "lora_B, or pass pairs=[('down.weight', 'up.weight')]"
        )
    names = Counter(adapter.name for adapter in found)
    return tuple(
        replace(adapter, name=adapter.a) if names[adapter.name] > 1 else adapter
        for adapter in found
    )


def _given(shapes: Shapes, pairs: Pairs) -> list[Adapter]:
    found, seen = [], set[str]()
    for pair in pairs:
        _check_pair(pair)
        a, b, *dims = pair
        for name in (a, b):
            if name not in shapes or name in seen:
                why = "is in two" if name in seen else "is no array of the model"
                raise ConfigError(
                    f"pairs has ({a!r}, {b!r}), but {name!r} {why}: the arrays are "
                    f"{', '.join(shapes)}"
                )
            seen.add(name)
        a_dim, b_dim = dims or (0, 1)
        found.append(_adapter(owner_of(a) or a, a, b, shapes, a_dim, b_dim))
    return found


def _check_pair(pair: object) -> None:
    """Raise ConfigError unless these are two names, and maybe two dims."""
    parts = list(pair) if isinstance(pair, tuple | list) else []
    names, dims = parts[:2], parts[2:]
    are_names = len(names) == 2 and all(isinstance(each, str) for each in names)
    if are_names and len(dims) in (0, 2) and all(isinstance(d, Integral) for d in dims):
        return
    raise ConfigError(
        f"pairs has {shown(pair)} where the names of A and B should be: list tuples, "
        "[('down.weight', 'up.weight')] or, with the dims of the components, "
        "[('down.weight', 'up.weight', 0, 1)]"
    )


def _named(shapes: Shapes) -> list[Adapter]:
    halves: dict[tuple[str, str, str], dict[str, str]] = {}
    for name in shapes:
        place = _place_of(name)
        if place is not None:
            *key, factor, suffix = place
            if suffix.endswith("bias"):
                suffix, factor = f"{suffix.removesuffix('bias')}weight", f"{factor}bias"
            halves.setdefault((key[0], key[1], suffix), {})[factor] = name
        elif any(part.startswith("lora_") for part in name.split(".")):
            raise ConfigError(_unknown(name))
    found = []
    for (module, _, suffix), names in halves.items():
        if not {"a", "b"} <= names.keys() or "abias" in names:
            raise ConfigError(
                f"{', '.join(names.values())} is not a factor with the other one: an "
                "adapter has lora_A and lora_B, which both train, and no bias of lora_A"
            )
        a, b = names["a"], names["b"]
        if not suffix:
            _check_layout(a, b, shapes)
        found.append(_adapter(module, a, b, shapes, bias=names.get("bbias")))
    return found


def _place_of(name: str) -> tuple[str, str, str, str] | None:
    """Return module, kind, "a" or "b", and what follows, of a factor's name."""
    parts = name.split(".")
    for place in reversed(range(len(parts))):
        match = _FACTOR.fullmatch(parts[place])
        if match:
            module = ".".join(parts[:place]).removeprefix(_PEFT_PREFIX)
            after = ".".join(parts[place + 1 :])
            return module or "lora", match[1] or "", match[2].lower(), after
    return None


def _unknown(name: str) -> str:
    if "lora_magnitude_vector" in name:
        return (
            f"{name} is a magnitude of DoRA, which scales the whole weight by the norm "
            "of all its components: train with use_dora=False, or without a plan"
        )
    return (
        f"{name} is neither factor of an adapter, though it is named like one: pass "
        "pairs=[('...lora_A', '...lora_B')] to say which arrays are"
    )


def _check_layout(a: str, b: str, shapes: Shapes) -> None:
    """Raise ShapeError if two matrices of a module's own could be laid out both ways.

    A rank is smaller than a width: ``(8, 64)`` and ``(64, 8)`` have rank 8.
    """
    first, second = shapes[a], shapes[b]
    if len(first) == len(second) == 2 and first[1] == second[0]:
        if first[0] == second[1] and first[0] < first[1]:
            return
        raise ShapeError(
            f"{a} of shape {first} and {b} of shape {second} do not tell their rank: "
            f"say which dims it is with pairs=[({a!r}, {b!r}, 0, 1)] if A is (rank, "
            "inputs), or 1, 0 if it is (inputs, rank)"
        )


def _adapter(
    module: str,
    a: str,
    b: str,
    shapes: Shapes,
    a_dim: int = 0,
    b_dim: int = 1,
    bias: str | None = None,
) -> Adapter:
    for name, dim in ((a, a_dim), (b, b_dim)):
        if not 0 <= dim < len(shapes[name]):
            raise ShapeError(f"{name} of shape {shapes[name]} has no dim {dim}")
    rank = shapes[a][a_dim]
    if rank != shapes[b][b_dim] or rank == 0:
        raise ShapeError(
            f"{a} of shape {shapes[a]} has {rank} components and {b} of shape "
            f"{shapes[b]} has {shapes[b][b_dim]}: a component is a row of A with a "
            "column of B; adapters of grouped convolutions or of stacked weights have "
            "none, so leave them out of the LoRA config, or train without a plan"
        )
    return Adapter(module, a, b, rank, a_dim, b_dim, bias)
