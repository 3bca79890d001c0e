"""Tensors that modules keep besides their parameters and buffers, computed from them.

Weight normalisation and pruning keep the weight that they computed last, and many
modules keep an activation to be looked at.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from flwr_asyncdrop.submodel.plan import Plan


@torch.no_grad()
def refresh(module: nn.Module) -> None:
    """Compute anew the weight that a hook of torch's own keeps in the module."""
    for hook in list(module._forward_pre_hooks.values()):
        if isinstance(hook, WeightNorm):
            setattr(module, hook.name, hook.compute_weight(module))
        elif isinstance(hook, SpectralNorm):
            weight = hook.compute_weight(module, do_power_iteration=False)
            setattr(module, hook.name, weight)
        elif isinstance(hook, BasePruningMethod):
            weight = hook.apply_mask(module)  # type: ignore[no-untyped-call]
            setattr(module, hook._tensor_name, weight)


def without_values(module: nn.Module) -> None:
    """Move to the device meta what a weight on it is computed from, if anything."""
    if is_parametrized(module):
        module.get_submodule("parametrizations").to("meta")
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            name = f"{hook._tensor_name}_mask"
            module._buffers[name] = module.get_buffer(name).to("meta")


def _estimates(model: nn.Module) -> Iterator[str]:
    """Yield the names of the singular vectors that spectral norms estimate."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        names = [""] if isinstance(module, _SpectralNorm) else []
        hooks = module._forward_pre_hooks.values()
        names += [hook.name for hook in hooks if isinstance(hook, SpectralNorm)]
        for name in names:
            yield f"{prefix}{name}_u"
            yield f"{prefix}{name}_v"


def estimated_groups(model: nn.Module, plan: Plan) -> dict[int, str]:
    """Return the groups of `plan` that narrow such an estimate, by number, and why not.

    A part of it has another length than 1, and so has what is merged from parts.
    """
    return {
        group: "divided by a spectral norm, whose estimate cannot be merged from parts"
        for name in _estimates(model)
        for units in plan.axes.get(name, {}).values()
        for group in plan.groups_of(units)
    }
