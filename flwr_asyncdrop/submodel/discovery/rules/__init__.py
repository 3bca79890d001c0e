"""What each operation does to unit labels: one table, operation -> rule."""

from functools import partial

import torch
from torch._ops import OpOverload

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel.discovery.call import Rule
from flwr_asyncdrop.submodel.discovery.rules import (
    contraction,
    frequency,
    joining,
    normalisation,
    packing,
    pointwise,
    reduction,
    routing,
    scatter,
    selection,
    strided,
    views,
)
from flwr_asyncdrop.submodel.discovery.rules.contraction import channels, match
from flwr_asyncdrop.submodel.discovery.rules.pointwise import elementwise

__all__ = ["RULES", "add_rule", "channels", "elementwise", "match", "rule_for"]

_KINDS = (
    contraction,
    frequency,
    joining,
    normalisation,
    packing,
    pointwise,
    reduction,
    scatter,
    selection,
    views,
)
RULES: dict[str, Rule] = {
    name: rule
    for kind in _KINDS
    for names, rule in kind.RULES.items()
    for name in names.split()
}
"""Operation, without its overload -> rule; ``"namespace::name"`` but for aten's."""

RULES |= {
    name: partial(extension, base=RULES.get(name))
    for names, extension in {**routing.EXTENSIONS, **strided.EXTENSIONS}.items()
    for name in names.split()
}


def add_rule(operation: str, rule: Rule) -> None:
    """Say what an operation does to the units that go into it.

    Parameters
    ----------
    operation : str
        ``"namespace::name"`` of an operation, e.g. of `torch.library`, or the name of
        one of aten's; without an overload.
    rule : callable
        Takes the traced `Call` and returns the labels of its outputs. It may join units
        with others, or freeze them. `elementwise` is one, and `RULES` has others. It is
        needed where plans are made, and whatever it says is verified.

    Raises
    ------
    ConfigError
        If `operation` is no such name.
    """
    namespace, _, name = operation.rpartition("::")
    if not name.isidentifier() or not (namespace or "aten").isidentifier():
        raise ConfigError(
            f"operation={operation!r} must be a name of aten's, or 'namespace::name', "
            "without an overload"
        )
    RULES[name if namespace == "aten" else operation] = rule


def rule_for(func: OpOverload) -> Rule | None:
    """Return the rule of an operation, None if it is unknown.

    Operations without a rule of their own that torch tags as pointwise share one.
    """
    name = func.overloadpacket.__name__
    if func.namespace != "aten":
        name = f"{func.namespace}::{name}"
    if name in RULES:
        return RULES[name]
    return elementwise if torch.Tag.pointwise in func.tags else None
