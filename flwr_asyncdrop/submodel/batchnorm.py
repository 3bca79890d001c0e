"""Batch normalisation and submodels: statistics that fit the merged model."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flwr_asyncdrop.submodel.kernels import eval_mode


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers of a model that keep running statistics of batches."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]


def recalibrate_bn(
    model: nn.Module, batches: Iterable[Tensor], *, keep: Iterable[nn.Module] = ()
) -> None:
    """Learn the running statistics of batch normalisation anew, in place.

    Means and variances of submodels are biased for the full model, since they sum over
    fewer units. The new ones are plain averages over a few batches of the model's
    inputs, on its device; without batches the old ones stay, and so do those of layers
    that no batch reaches, or all if the model fails on one. So do the modes (train or
    eval), parameters and momenta.

    The layers in the modules to `keep` have theirs, and normalise with them: those of a
    frozen backbone that devices keep in eval mode, whose other layers were trained with
    these very statistics.
    """
    kept = {layer for module in keep for layer in module.modules()}
    layers = [layer for layer in batch_norms(model) if layer not in kept]
    if not layers:
        return
    momenta = {layer: layer.momentum for layer in layers}
    before = {layer: copy.deepcopy(layer._buffers) for layer in layers}
    learnt: list[_BatchNorm] = []
    try:
        with eval_mode(model), torch.no_grad():
            for number, batch in enumerate(batches):
                for layer in layers if number == 0 else ():
                    layer.reset_running_stats()
                    layer.momentum = None  # torch's word for the plain average
                    layer.train()
                model(batch)
        learnt = [layer for layer in layers if layer.num_batches_tracked]
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
            if layer not in learnt:
                layer.load_state_dict(before[layer], strict=False)
