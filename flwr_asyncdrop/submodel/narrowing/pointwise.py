"""A 1x1 convolution with a stride, of few channels."""

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _pair

# oneDNN's issue 6035: on a processor with AVX2 and nothing newer, the gradient of the
# weight is wrong, or memory is overwritten, where the order is channels-last and one
# register holds all input channels.
_CHANNELS_OF_A_REGISTER = 8


class StridedPointwiseConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` that leaves pixels out first and convolves what is left.

    It computes what the stock module does, by a primitive that is right for any number
    of channels.
    """

    def forward(
        self,
        input: Tensor,  # noqa: A002  # as the stock module calls it
    ) -> Tensor:
        """Return what the stock module does."""
        rows, columns = _pair(self.stride)  # who sets it later may set a number
        return F.conv2d(input[..., ::rows, ::columns], self.weight, self.bias)


def use_safe_convolutions(model: nn.Module) -> None:
    """Change the class of all convolutions whose stock one may compute wrong gradients.

    What they hold stays. Classes derived from ``Conv2d`` are left as they are.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and _is_at_risk(module):
            module.__class__ = StridedPointwiseConv2d


def _is_at_risk(layer: nn.Conv2d) -> bool:
    return (
        layer.weight.shape[2:] == (1, 1)
        and _pair(layer.stride) != (1, 1)
        and layer.padding in ("valid", 0, (0, 0))
        and layer.groups == 1
        and layer.in_channels < _CHANNELS_OF_A_REGISTER
    )
