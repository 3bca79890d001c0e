"""What each operation does to unit labels: one table, operation -> rule."""

from functools import partial

import torch
from torch._ops import OpOverload

from flwr_asyncdrop.submodel.discovery.call import Rule
from flwr_asyncdrop.submodel.discovery.rules import (
    contraction,
    joining,
    normalisation,
    pointwise,
    reduction,
    routing,
    selection,
    strided,
    views,
)

__all__ = ["rule_for"]

_KINDS = (contraction, joining, normalisation, pointwise, reduction, selection, views)
RULES: dict[str, Rule] = {
    name: rule
    for kind in _KINDS
    for names, rule in kind.RULES.items()
    for name in names.split()
}
"""Aten operation, without its overload -> rule."""

RULES |= {
    name: partial(extension, base=RULES.get(name))
    for names, extension in {**routing.EXTENSIONS, **strided.EXTENSIONS}.items()
    for name in names.split()
}


def rule_for(func: OpOverload) -> Rule | None:
    """Return the rule of an aten operation, None if it is unknown.

    Operations without a rule of their own that torch tags as pointwise share one.
    """
    if func.namespace != "aten":
        return None
    name = func.overloadpacket.__name__
    if name in RULES:
        return RULES[name]
    return pointwise.elementwise if torch.Tag.pointwise in func.tags else None
