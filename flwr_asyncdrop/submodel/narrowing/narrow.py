"""Build the narrower module that a submodel's tensors belong to."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel.narrowing.attention import use_padded_tensors
from flwr_asyncdrop.submodel.narrowing.conventions import follow_conventions
from flwr_asyncdrop.submodel.narrowing.copies import copy_module, copying
from flwr_asyncdrop.submodel.narrowing.instance_norm import take_any_width
from flwr_asyncdrop.submodel.narrowing.mixtures import follow_experts
from flwr_asyncdrop.submodel.narrowing.patches import patch
from flwr_asyncdrop.submodel.narrowing.pointwise import use_safe_convolutions
from flwr_asyncdrop.submodel.narrowing.scaling import scale_inputs
from flwr_asyncdrop.submodel.narrowing.skipping import emptied_blocks, is_inside, skip
from flwr_asyncdrop.submodel.narrowing.wrappers import are_adapters_alone, wrapped_as
from flwr_asyncdrop.submodel.types import (
    State,
    check_initialised,
    shapes_of,
    tensors_of,
)

LACKS = "also needs the tensor"
"""What is said of a module that lacks one; the server looks for it, too."""


def narrow(
    model: nn.Module,
    shapes: Mapping[str, Sequence[int]],
    *,
    make: Callable[..., Tensor] = torch.zeros,
    scale: bool = False,
) -> nn.Module:
    """Return a copy of `model` whose tensors, from `make`, have these narrower shapes.

    Tied tensors stay tied; hooks, of gradients too, and other attributes are copied. A
    block all of whose tensors have no rows is left out: it returns its first argument.
    `scale` is that of `load_submodel`. Raises ShapeError if `shapes` are not those of a
    submodel.
    """
    copied, skipped = blank_copy(model, shapes, make)
    adapt(copied, model, skipped, scale=scale)
    return copied


def blank_copy(
    model: nn.Module,
    shapes: Mapping[str, Sequence[int]],
    make: Callable[..., Tensor],
) -> tuple[nn.Module, Sequence[str]]:
    """Return a copy of `model` with narrower tensors, and the blocks to be left out.

    Nothing but its tensors is narrower yet. ShapeError as `narrow` raises it.
    """
    tensors = tensors_of(model)
    skipped = emptied_blocks(model, shapes)
    _check_shapes(type(model).__name__, tensors, shapes, skipped)
    # What is in the memo counts as copied already; tied tensors are one entry.
    memo: dict[int, Any] = {
        id(tensor): _blank(tensor, shapes[name], make)
        for name, tensor in tensors.items()
    }
    with copying(model):
        return copy_module(model, memo), skipped


def adapt(
    narrowed: nn.Module, full: nn.Module, skipped: Sequence[str], *, scale: bool
) -> None:
    """Make the modules of a copy of `full` fit their narrower tensors."""
    for before, after in zip(full.modules(), narrowed.modules(), strict=True):
        if _has_narrowed(before, after):
            patch(after, before)
    follow_conventions(narrowed, full)
    follow_experts(narrowed, full)
    use_safe_convolutions(narrowed)
    take_any_width(narrowed)
    use_padded_tensors(narrowed)
    for block in skipped:
        skip(narrowed.get_submodule(block))
    if scale:
        scale_inputs(narrowed, full)


def load_submodel(model: nn.Module, state: State, *, scale: bool = True) -> nn.Module:
    """Return a copy of `model`, as narrow as the arrays that arrived, holding them.

    Parameters
    ----------
    model : Module
        The full module; not touched.
    state : dict of str to Tensor
        A submodel's ``state_dict``, or a full one. Copied, not aliased.
    scale : bool, default True
        Whether inputs of layers that sum over fewer units are multiplied by full
        width / narrow width. The merged model is better for it, with batch
        normalisation and without (``docs/batchnorm.md``). Gradients grow by the same
        factor: turn it off for a model without normalisation that is trained at the
        edge of what its learning rate allows.

    Returns
    -------
    Module
        On the device of `model`, in its mode (train or eval).

    Raises
    ------
    ShapeError
        If the arrays are not a submodel of `model`.
    UnsupportedModelError
        If lazy layers of `model` have not run yet, or if it cannot be copied.
    """
    check_initialised(model)
    sent = {name: array for name, array in state.items() if isinstance(array, Tensor)}
    with torch.inference_mode(False):  # what is made in it can never train
        small = narrow(model, shapes_of(sent), make=torch.empty, scale=scale)
        # What is no tensor is not sent: the versions of modules, their extra state.
        complete = model.state_dict()
        complete.update(sent)
        small.load_state_dict(complete, strict=True)
    return small


def _only_part(sent: Collection[str], names: Collection[str]) -> str:
    """Return the part of a model that these arrays are, by its own names or not."""
    for part in dict.fromkeys(name.partition(".")[0] for name in names):
        mine = {name for name in names if name.startswith(f"{part}.")}
        own = {name.removeprefix(f"{part}.") for name in mine}
        if mine and set(sent) in (mine, own):
            return part
    return ""


def _check_shapes(
    model: str,
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Sequence[int]],
    skipped: Sequence[str],
) -> None:
    complaint = f"these arrays are not a submodel of {model}"
    for name in sorted(tensors.keys() ^ shapes.keys()):
        found = "does not have a tensor" if name in shapes else LACKS
        fix = "build the same module on the server and on the client"
        if shapes and (inner := wrapped_as(next(iter(shapes)), tensors)):
            fix = f"load the model inside of it, .{inner}, and return its state_dict"
        elif are_adapters_alone(shapes, tensors):
            fix = "they are adapters alone, which load_lora(model, arrays) loads"
        elif part := _only_part(shapes, tensors):
            fix += (
                f", or, if {part} alone travels, load that part of the model alone "
                "(docs/migrating.md#personal-layers)"
            )
        raise ShapeError(f"{complaint}: the module {found} {name}; {fix}")
    for name, tensor in tensors.items():
        if tensor.dim() and any(is_inside(name, block) for block in skipped):
            continue
        full, small = tuple(tensor.shape), tuple(shapes[name])
        fits = len(small) == len(full) and all(
            1 <= size <= limit or size == limit
            for size, limit in zip(small, full, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"{complaint}: tensor {name} has shape {small}, which cannot be "
                f"narrowed from {full}; build the same module on the server and on "
                "the client"
            )


def _blank(tensor: Tensor, shape: Sequence[int], make: Callable[..., Tensor]) -> Tensor:
    blank = make(tuple(shape), dtype=tensor.dtype, device=tensor.device)
    if not isinstance(tensor, nn.Parameter):
        return blank
    return nn.Parameter(blank, requires_grad=tensor.requires_grad)


def _has_narrowed(full: nn.Module, small: nn.Module) -> bool:
    """Whether one of the module's own tensors is narrower, and not empty."""
    return any(
        before is not None
        and after is not None
        and before.shape != after.shape
        and after.numel() > 0
        for before, after in zip(_own_tensors(full), _own_tensors(small), strict=True)
    )


def _own_tensors(module: nn.Module) -> list[Tensor | None]:
    """Return parameters and buffers of the module, and what those are computed from."""
    own = [*module._parameters.values(), *module._buffers.values()]
    if is_parametrized(module):
        own += tensors_of(module.get_submodule("parametrizations")).values()
    return own
