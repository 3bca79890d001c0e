"""Batch normalisation and submodels: statistics that fit the merged model."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flwr_asyncdrop.submodel.kernels import eval_mode


def recalibrate_bn(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Learn the running statistics of batch normalisation anew, in place.

    What submodels learn of means and variances is biased for the full model, since
    they sum over fewer units. A few batches of data, no labels and no gradients, give
    the merged model statistics of its own: the plain average over the batches.

    Parameters
    ----------
    model : Module
        Its modes (train or eval), parameters and momenta stay as they are. A model
        without batch normalisation is left alone.
    batches : iterable of Tensor
        Inputs of the model, on its device. Without any the statistics stay.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]
    if not layers:
        return
    momenta = {layer: layer.momentum for layer in layers}
    try:
        with eval_mode(model), torch.no_grad():
            for number, batch in enumerate(batches):
                for layer in layers if number == 0 else ():
                    layer.reset_running_stats()
                    layer.momentum = None  # torch's word for the plain average
                    layer.train()
                model(batch)
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
