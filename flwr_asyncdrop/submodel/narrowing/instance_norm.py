"""Instance normalisation that has no tensor of its own."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm


class _OfAnyWidth(_InstanceNorm):
    """It normalises as many channels as there are.

    Its width follows from no tensor of a submodel, and torch, which does not use it,
    warns of every input that is narrower.
    """

    def forward(
        self,
        input: Tensor,  # noqa: A002  # as the stock module calls it
    ) -> Tensor:
        """Return what the stock module does."""
        layer: Any = self  # torch leaves these methods untyped
        layer._check_input_dim(input)
        one_alone = input.dim() == layer._get_no_batch_dim()
        run = layer._handle_no_batch_input if one_alone else layer._apply_instance_norm
        normalised: Tensor = run(input)
        return normalised


class InstanceNorm1dOfAnyWidth(_OfAnyWidth, nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` of any number of channels."""


class InstanceNorm2dOfAnyWidth(_OfAnyWidth, nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d` of any number of channels."""


class InstanceNorm3dOfAnyWidth(_OfAnyWidth, nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d` of any number of channels."""


_OF_ANY_WIDTH: dict[type[nn.Module], type[nn.Module]] = {
    nn.InstanceNorm1d: InstanceNorm1dOfAnyWidth,
    nn.InstanceNorm2d: InstanceNorm2dOfAnyWidth,
    nn.InstanceNorm3d: InstanceNorm3dOfAnyWidth,
}


def take_any_width(model: nn.Module) -> None:
    """Change the class of all instance normalisations without a tensor.

    Classes derived from torch's are left as they are.
    """
    for module in model.modules():
        found = _OF_ANY_WIDTH.get(type(module))
        if found is not None and not module.state_dict():
            module.__class__ = found
