"""The plan whose units are whole residual blocks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from flwr_asyncdrop.submodel.narrowing.skipping import is_inside
from flwr_asyncdrop.submodel.plan import Plan, UnitGroup
from flwr_asyncdrop.submodel.types import (
    frozen_of,
    parameters_of,
    shapes_of,
    tensors_of,
)


@dataclass(frozen=True, eq=False)
class BlockPlan(Plan):
    """A plan whose units are whole residual blocks; made by ``plan_blocks``.

    They form one group. The tensors of a dropped block are sent empty, without rows,
    and the submodel passes the block's input on. Only what has no dims, such as the
    count of batches seen, stays.

    Attributes
    ----------
    blocks : tuple of str
        The module of each unit, in the order in which the model lists them.
    """

    blocks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, model: nn.Module, blocks: Sequence[str], left_out: Mapping[str, str]
    ) -> Self:
        """Return the plan with these modules of `model` as its units."""
        tensors = tensors_of(model)
        return cls(
            groups=(UnitGroup("residual blocks", len(blocks), "residual"),),
            shapes=shapes_of(tensors),
            axes={
                name: {0: torch.full((len(tensors[name]),), unit)}
                for unit, block in enumerate(blocks)
                for name in tensors_in(model, block)
            },
            parameters=parameters_of(tensors),
            left_out=dict(left_out),
            frozen=frozen_of(tensors),
            blocks=tuple(blocks),
        )

    def report(self) -> str:
        """Return a table of the blocks, their share of the model, what stays whole."""
        total = max(sum(map(math.prod, self.shapes.values())), 1)
        width = max(len("block"), *map(len, self.blocks))
        lines = [f"{'block':<{width}}  elements"]
        for block in self.blocks:
            mine = sum(
                math.prod(shape)
                for name, shape in self.shapes.items()
                if is_inside(name, block)
            )
            lines.append(f"{block:<{width}}  {mine / total:>8.1%}")
        lines += [f"whole: {name} ({why})" for name, why in self.left_out.items()]
        return "\n".join(lines)

    __str__ = report


def tensors_in(model: nn.Module, block: str) -> list[str]:
    """Return the names of the tensors of a block that have rows to lose."""
    return [
        name
        for name, tensor in tensors_of(model).items()
        if is_inside(name, block) and tensor.dim()
    ]
