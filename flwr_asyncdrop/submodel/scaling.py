"""Scale what flows into a narrowed layer, so that its sums keep their size."""

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class InputScale:
    """A forward pre-hook that multiplies the input by `factor`, 1/keep.

    The weights stay as they are: folded into them, the factor would change the
    learning rate.
    """

    factor: float

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the first one, the input, scaled."""
        if args:
            return (args[0] * self.factor, *args[1:]), kwargs
        return args, {**kwargs, "input": kwargs["input"] * self.factor}


def scale_consumers(narrow: nn.Module, full: nn.Module) -> None:
    """Put an `InputScale` on every layer of `narrow` that sums over fewer units.

    These are the linear layers and the convolutions that see all channels; in a
    depthwise or grouped convolution a unit takes its whole group along.
    """
    originals = dict(full.named_modules())
    for name, module in narrow.named_modules():
        factor = _summed_over(originals[name]) / max(_summed_over(module), 1)
        if factor > 1:
            module.register_forward_pre_hook(InputScale(factor), with_kwargs=True)


def _summed_over(module: nn.Module) -> int:
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.modules.conv._ConvNd) and module.groups == 1:
        return module.in_channels
    return 0
