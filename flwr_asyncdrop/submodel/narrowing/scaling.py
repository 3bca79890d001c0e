"""1/keep scaling of what flows into layers that sum over fewer units."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel.types import is_inexact

_Place: TypeAlias = int | str
"""Of an argument: a positional one's number, or a keyword."""
_INPUT: Final = "input"
"""What torch's own layers call it."""
_KNOWN: Final = ("torch.", "flwr_asyncdrop.")
_MARK: Final = "_input_scale"


@dataclass(frozen=True)
class InputScale:
    """A forward pre-hook that multiplies the input.

    Folded into the weights, the factor would change the learning rate.
    """

    factor: float

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the input scaled.

        Raises
        ------
        ShapeError
            If the layer has a forward of its own, and not exactly one argument is as
            wide as what it sums over.
        """
        place = _place_of_input(module, args, kwargs)
        if isinstance(place, int):
            scaled = (args[place] * self.factor,)
            return (*args[:place], *scaled, *args[place + 1 :]), kwargs
        return args, {**kwargs, place: kwargs[place] * self.factor}


class _ScaledParameters(dict[str, nn.Parameter | None]):
    """The parameters of a layer whose input is scaled.

    `torch.compile` looks at their type or, in PyTorch 2.6, at their number, and not at
    hooks: otherwise, what it compiled for a layer without a scale would run for one of
    the same shapes with it. So there is one more, which is None as a missing bias is.
    """


def scale_inputs(small: nn.Module, full: nn.Module) -> None:
    """Scale what flows into every layer that sums over fewer units than it did."""
    for before, after in zip(full.modules(), small.modules(), strict=True):
        factor = _summed_over(before) / max(_summed_over(after), 1)
        if factor > 1:
            add_scale(after, InputScale(factor))


def add_scale(layer: nn.Module, scale: InputScale) -> None:
    """Have `layer` scale its input."""
    layer.register_forward_pre_hook(scale, with_kwargs=True)
    marked = _ScaledParameters({**layer._parameters, _MARK: None})
    layer.__dict__["_parameters"] = marked


def scales_of(layer: nn.Module) -> dict[int, InputScale]:
    """Return the scales of the layer's input, by the numbers of their hooks."""
    hooks = layer._forward_pre_hooks.items()
    return {number: hook for number, hook in hooks if isinstance(hook, InputScale)}


def remove_scales(layer: nn.Module) -> None:
    """Have `layer` take its input as it is."""
    for number in scales_of(layer):
        del layer._forward_pre_hooks[number]
        layer._forward_pre_hooks_with_kwargs.pop(number, None)
    if isinstance(layer._parameters, _ScaledParameters):
        own = layer._parameters.items()
        layer.__dict__["_parameters"] = {n: p for n, p in own if n != _MARK}


def _summed_over(module: nn.Module) -> int:
    if isinstance(module, nn.Linear):
        return module.in_features
    # In a depthwise or grouped convolution a unit takes its whole group along.
    if isinstance(module, nn.modules.conv._ConvNd) and module.groups == 1:
        return module.in_channels
    return 0


def _place_of_input(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Place:
    forward = getattr(module.forward, "__func__", module.forward)
    if forward.__module__.startswith(_KNOWN):
        return 0 if args else _INPUT
    given: list[tuple[_Place, Any]] = [*enumerate(args), *kwargs.items()]
    fitting = [place for place, value in given if _fits(module, value)]
    if len(fitting) != 1:
        raise ShapeError(
            f"{len(fitting)} arguments of {type(module).__name__}, whose forward is "
            f"its own, have the {_summed_over(module)} features that it sums over: "
            "which is to be scaled is not known, where it must be one"
        )
    return fitting[0]


def _fits(module: nn.Module, value: Any) -> bool:
    """Whether an argument is as wide as what the layer sums over."""
    if not isinstance(value, Tensor) or not is_inexact(value):
        return False
    dim = 1
    if isinstance(module, nn.modules.conv._ConvNd):
        dim += len(module.kernel_size)
    return value.dim() >= dim and value.shape[-dim] == _summed_over(module)
