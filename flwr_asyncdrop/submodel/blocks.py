"""Whole residual blocks as units: find them, and try what is left without them."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel.block_plan import BlockPlan, tensors_in
from flwr_asyncdrop.submodel.default_device import cpu_by_default
from flwr_asyncdrop.submodel.narrowing.narrow import load_submodel
from flwr_asyncdrop.submodel.narrowing.skipping import emptied_blocks, is_inside
from flwr_asyncdrop.submodel.probing.compare import agree, shift_
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.probe import Probe, probing
from flwr_asyncdrop.submodel.probing.running_passes import run
from flwr_asyncdrop.submodel.residual import residual_modules, zeroed
from flwr_asyncdrop.submodel.transfer import extract
from flwr_asyncdrop.submodel.types import (
    Indices,
    Inputs,
    examples_of,
    shapes_of,
    tensors_of,
)
from flwr_asyncdrop.submodel.verification.verify import bisect

_NO_ROWS = torch.empty(0, dtype=torch.int64)


@cpu_by_default()
def plan_blocks(model: nn.Module, example_inputs: Inputs) -> BlockPlan:
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
    left_out: dict[str, str] = {}
    with probing(model, examples_of(example_inputs)) as probe:
        found = residual_modules(probe)
        blocks = _separable(probe.model, found, left_out)
        blocks = [b for b in blocks if not any(is_inside(o, b) for o in blocks)]
        blocks = _unmistakable(probe.model, blocks, found, left_out)
        blocks = _verified(probe, blocks, left_out)
    if len(blocks) < 2:
        why = "".join(f"; {name} {reason}" for name, reason in left_out.items())
        raise UnsupportedModelError(
            f"{type(model).__name__} has {len(blocks)} residual blocks that return "
            f"their input when their weights are zero, and one always stays{why}: drop "
            "channels instead, with asyncdrop or hetero-asyncdrop"
        )
    return BlockPlan.of(probe.model, blocks, left_out)


def _separable(
    model: nn.Module, names: Sequence[str], left_out: dict[str, str]
) -> list[str]:
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


def _unmistakable(
    model: nn.Module,
    blocks: Sequence[str],
    residual: Sequence[str],
    left_out: dict[str, str],
) -> list[str]:
    """Return blocks that the client can tell from what is around them.

    If all blocks of a module without other tensors are dropped, the arrays do not tell
    the module from its blocks. Where it does more than they do, its last block stays.
    """
    kept = list(blocks)
    outwards = sorted((name for name, _ in model.named_modules()), key=len)[::-1]
    for outer in outwards:
        inside = [block for block in kept if is_inside(block, outer)]
        if not inside or len(inside) == len(kept):
            continue
        shapes = shapes_of(tensors_of(model))
        for block in inside:
            for name in tensors_in(model, block):
                shapes[name] = (0, *shapes[name][1:])
        if not set(emptied_blocks(model, shapes)) <= set(residual):
            kept.remove(inside[-1])
            left_out[inside[-1]] = f"stays, since {outer} does more than its blocks"
    return kept


def _verified(
    probe: Probe, blocks: Sequence[str], left_out: dict[str, str]
) -> list[str]:
    """Return the blocks without which the model gives what it gives with them zeroed.

    Every other block is left out at once, then the others.
    """

    def fault(tried: Sequence[str]) -> str | None:
        holds = _can_do_without(probe, tried)
        return None if holds else "the model without it does not give what it should"

    faults = bisect(blocks[::2], fault) | bisect(blocks[1::2], fault)
    left_out |= {block: faults[block] for block in blocks if block in faults}
    return [block for block in blocks if block not in faults]


def _can_do_without(probe: Probe, blocks: Sequence[str]) -> bool:
    model = probe.model
    state = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    indices: Indices = {
        name: {0: _NO_ROWS} for block in blocks for name in tensors_in(model, block)
    }
    try:
        small = load_submodel(model, extract(state, indices))
        found = _outputs(probe, small)
        shift_(tensors_of(small).values(), probe.dtype)
        shifted = _outputs(probe, small)
    except Exception:  # whatever the model's own code raises
        return False
    with ExitStack() as silence:
        for block in blocks:
            silence.enter_context(zeroed(model.get_submodule(block)))
        expected = _outputs(probe, model)
    passes = zip(found, expected, shifted, strict=True)
    return all(agree(*outputs, probe.dtype) for outputs in passes)


def _outputs(probe: Probe, model: nn.Module) -> list[list[Any]]:
    """Return what `model` gives on each pass, in eval and in training mode."""
    outputs = []
    for way in probe.passes:
        with kept_state(model, probe.written):
            outputs.append(run(model, way))
    return outputs
