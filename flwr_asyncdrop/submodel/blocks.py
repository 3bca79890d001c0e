"""Whole residual blocks as units: find them, and try what is left without them."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel.kernels import plain_kernels
from flwr_asyncdrop.submodel.narrow import load_submodel
from flwr_asyncdrop.submodel.plan import Plan, UnitGroup
from flwr_asyncdrop.submodel.probe import Probe, make_probe
from flwr_asyncdrop.submodel.residual import residual_modules, zeroed
from flwr_asyncdrop.submodel.skipping import emptied_blocks, is_inside
from flwr_asyncdrop.submodel.tensors import tensors_of
from flwr_asyncdrop.submodel.transfer import extract
from flwr_asyncdrop.submodel.types import Indices

__all__ = ["BlockPlan", "plan_blocks"]

_NO_ROWS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class BlockPlan(Plan):
    """A plan whose units are whole residual blocks; made by ``plan_blocks``.

    They form one group. A block that is dropped keeps no row of any of its tensors:
    they are sent empty, and the submodel passes the block's input on.

    Attributes
    ----------
    blocks : tuple of str
        The module of each unit, in the order in which the model lists them.
    """

    blocks: tuple[str, ...] = ()

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


def plan_blocks(
    model: nn.Module, example_inputs: Tensor | tuple[Any, ...]
) -> BlockPlan:
    """Find which residual blocks of `model` can be left out whole.

    A block is a module that returns its input when its tensors are zero, and has a
    branch beside it that depends on the input: a residual block without projection, a
    pre-norm Transformer layer, an inverted residual. Of nested ones the smallest. Each
    has been left out once, together with others, and what was left ran and gave what
    the full model gives with these blocks zeroed.

    Parameters
    ----------
    model : Module
        Any module that `copy.deepcopy` can copy; it stays as it is.
    example_inputs : Tensor or tuple
        The positional arguments of one forward pass; a batch of one or two is enough.

    Returns
    -------
    BlockPlan
        With one group, of at least two blocks.

    Raises
    ------
    UnsupportedModelError
        If the model cannot be copied, does not run on the inputs, or has fewer blocks.
    """
    is_tensor = isinstance(example_inputs, Tensor)
    inputs = (example_inputs,) if is_tensor else tuple(example_inputs)
    left_out: dict[str, str] = {}
    with plain_kernels():
        probe = make_probe(model, inputs)
        found = residual_modules(probe)
        blocks = _smallest(_separable(probe.model, found, left_out))
        blocks = _unmistakable(probe.model, blocks, found, left_out)
        blocks = _verified(probe, blocks, left_out)
    if len(blocks) < 2:
        why = "".join(f"; {name} {reason}" for name, reason in left_out.items())
        raise UnsupportedModelError(
            f"{type(model).__name__} has {len(blocks)} residual blocks that return "
            f"their input when their weights are zero, and one always stays{why}: drop "
            "channels instead, with asyncdrop or hetero-asyncdrop"
        )
    return _plan(probe.model, blocks, left_out)


def _separable(
    model: nn.Module, names: Sequence[str], left_out: dict[str, str]
) -> list[str]:
    """Return the modules whose tensors have rows to lose and are theirs alone."""
    tensors = tensors_of(model)
    found = []
    for module in names:
        mine = {name for name in tensors if is_inside(name, module)}
        ids = {id(tensors[name]) for name in mine}
        if any(id(tensors[name]) in ids for name in tensors.keys() - mine):
            left_out[module] = "shares tensors with the rest of the model"
        elif any(not tensors[n].dim() and tensors[n].is_floating_point() for n in mine):
            left_out[module] = "has a scalar, which cannot be sent empty"
        else:
            found.append(module)
    return found


def _smallest(names: Sequence[str]) -> list[str]:
    return [
        name for name in names if not any(is_inside(other, name) for other in names)
    ]


def _unmistakable(
    model: nn.Module,
    blocks: Sequence[str],
    residual: Sequence[str],
    left_out: dict[str, str],
) -> list[str]:
    """Return blocks that the client can tell from what is around them.

    When all blocks of a module that has no other tensors are dropped, the arrays do
    not tell the module from its blocks. That does no harm if it does no more than they
    do; else its last block stays.
    """
    kept = list(blocks)
    outwards = sorted((name for name, _ in model.named_modules()), key=len)[::-1]
    for outer in outwards:
        inside = [block for block in kept if is_inside(block, outer)]
        if not inside or len(inside) == len(kept):
            continue
        shapes = {name: tuple(t.shape) for name, t in tensors_of(model).items()}
        for name in _tensors_in(model, inside):
            shapes[name] = (0, *shapes[name][1:])
        if not set(emptied_blocks(model, shapes)) <= set(residual):
            kept.remove(inside[-1])
            left_out[inside[-1]] = f"stays, since {outer} does more than its blocks"
    return kept


def _verified(
    probe: Probe, blocks: Sequence[str], left_out: dict[str, str]
) -> list[str]:
    """Return the blocks without which the model gives what it gives with them zeroed.

    Every other block is left out at once, then the others: all of them never are.
    """
    sound = {*_sound(probe, blocks[::2]), *_sound(probe, blocks[1::2])}
    for block in blocks:
        if block not in sound:
            left_out[block] = "the model without it does not give what it should"
    return [block for block in blocks if block in sound]


def _sound(probe: Probe, blocks: Sequence[str]) -> Sequence[str]:
    """Return the blocks that can be left out, together."""
    if not blocks or _can_do_without(probe, blocks):
        return blocks
    middle = len(blocks) // 2
    if not middle:
        return ()
    first, second = _sound(probe, blocks[:middle]), _sound(probe, blocks[middle:])
    together = (*first, *second)
    return together if _can_do_without(probe, together) else first


def _can_do_without(probe: Probe, blocks: Sequence[str]) -> bool:
    model = probe.model
    state = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    indices: Indices = {name: {0: _NO_ROWS} for name in _tensors_in(model, blocks)}
    try:
        found = probe.run(load_submodel(model, extract(state, indices)))
    except Exception:  # whatever the model's own code raises
        return False
    with ExitStack() as silence:
        for block in blocks:
            silence.enter_context(zeroed(model.get_submodule(block)))
        expected = probe.run()
    return len(found) == len(expected) and all(
        torch.allclose(one, other, rtol=0.0, atol=probe.tolerance, equal_nan=True)
        for one, other in zip(found, expected, strict=True)
        if isinstance(other, Tensor)
    )


def _tensors_in(model: nn.Module, blocks: Sequence[str]) -> dict[str, int]:
    """Return the tensors that have rows, and the number of the block they lie in."""
    return {
        name: number
        for name, tensor in tensors_of(model).items()
        for number, block in enumerate(blocks)
        if is_inside(name, block) and tensor.dim()
    }


def _plan(
    model: nn.Module, blocks: Sequence[str], left_out: Mapping[str, str]
) -> BlockPlan:
    tensors = tensors_of(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    axes = {
        name: {0: torch.full((shapes[name][0],), number)}
        for name, number in _tensors_in(model, blocks).items()
    }
    return BlockPlan(
        groups=(UnitGroup("residual blocks", len(blocks), "residual"),),
        shapes=shapes,
        axes=axes,
        parameters=frozenset(
            name for name, t in tensors.items() if isinstance(t, nn.Parameter)
        ),
        left_out=dict(left_out),
        blocks=tuple(blocks),
    )
