"""Tensors that modules keep besides their parameters and buffers, computed from them.

Weight normalisation keeps the weight that it computed last, and many modules keep an
activation to be looked at.
"""

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from flwr_asyncdrop.submodel.plan import Plan


@torch.no_grad()
def refresh(module: nn.Module) -> None:
    """Compute anew the weight that a normalisation by a hook keeps in the module."""
    for hook in list(module._forward_pre_hooks.values()):
        if isinstance(hook, WeightNorm):
            setattr(module, hook.name, hook.compute_weight(module))
        elif isinstance(hook, SpectralNorm):
            weight = hook.compute_weight(module, do_power_iteration=False)
            setattr(module, hook.name, weight)


def _estimates(model: nn.Module) -> set[str]:
    """Return the names of the singular vectors that spectral norms estimate."""
    found: set[str] = set()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, _SpectralNorm):
            found |= {f"{prefix}_u", f"{prefix}_v"}
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                found |= {f"{prefix}{hook.name}_u", f"{prefix}{hook.name}_v"}
    return found


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
