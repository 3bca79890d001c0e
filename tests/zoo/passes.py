"""One pass through a model, forward and backward, without rounding or randomness."""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["Arguments", "Observed", "leaves", "loss_of", "observe", "steady"]


class Arguments(NamedTuple):
    """What one forward pass is given."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    def double(self) -> "Arguments":
        """Return copies, real numbers in double precision."""
        return Arguments(_doubled(self.args), _doubled(dict(self.kwargs)))


def _doubled(value: Any) -> Any:
    if isinstance(value, Tensor):
        copied = value.detach().clone()
        if copied.is_complex():
            return copied.to(torch.complex128)
        return copied.double() if copied.is_floating_point() else copied
    if isinstance(value, (tuple, list)):
        return type(value)(_doubled(item) for item in value)
    if isinstance(value, dict):
        return {key: _doubled(item) for key, item in value.items()}
    return copy.deepcopy(value)


def steady(model: nn.Module) -> nn.Module:
    """Return a copy in double precision that draws no random numbers."""
    memo = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf  # made by an old hook
    }
    copied = copy.deepcopy(model, memo).double()
    copied._apply(lambda t: t.to(torch.complex128) if t.is_complex() else t)
    for module in copied.modules():
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if isinstance(value, float) and re.search("drop|mask_.*prob", name):
                    setattr(holder, name, 0.0)
        if re.search("Dropout|StochasticDepth|DropPath", type(module).__name__):
            for name in {"p", "drop_prob"} & vars(module).keys():
                setattr(module, name, 0.0)
        config = getattr(module, "config", None)
        if hasattr(config, "apply_spec_augment"):
            config.apply_spec_augment = False
    return copied


@dataclass
class Observed:
    """What a pass has shown.

    Attributes
    ----------
    outputs : list
        The leaves of the output, caches left out.
    tensors : dict of str to Tensor
        Gradients of parameters and buffers as they are afterwards, by name.
    """

    outputs: list[Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def observe(model: nn.Module, given: Arguments, experts: dict[int, Tensor]) -> Observed:
    """Run `model` forward and backward."""
    given = given.double()
    with Exactly(experts):
        outputs = list(leaves(model(*given.args, **given.kwargs)))
    loss = loss_of(outputs)
    parameters = {
        name: tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad
    }
    gradients = [None] * len(parameters)
    if loss.requires_grad and parameters:
        gradients = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True
        )
    tensors = {
        name: torch.zeros_like(tensor)
        if gradient is None
        else gradient.detach().to_dense()
        for (name, tensor), gradient in zip(parameters.items(), gradients, strict=True)
    }
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and name not in parameters:
            tensors[name] = tensor.detach().clone()
    return Observed(
        [out.detach() if isinstance(out, Tensor) else out for out in outputs], tensors
    )


def loss_of(outputs: list[Any]) -> Tensor:
    """Return a loss that depends on every real number among the outputs."""
    reals = [out for out in outputs if isinstance(out, Tensor) and out.requires_grad]
    return sum((_bounded(out) for out in reals), torch.zeros(()))


def _bounded(output: Tensor) -> Tensor:
    """Return a sum whose gradient is about one, however large the elements are."""
    values = torch.view_as_real(output) if output.is_complex() else output
    values = torch.where(values.isfinite(), values, 0.0)
    weights = torch.arange(1, values.numel() + 1).view(values.shape).mul(0.7).sin()
    return (weights * values / (1 + values.detach().abs())).sum()


def leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors and numbers within `value`; none of caches."""
    if isinstance(value, Tensor) or value is None or isinstance(value, (int, float)):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif "Cache" not in type(value).__name__:
        yield from leaves(list(vars(value).values()))


class Exactly(TorchFunctionMode):
    """Compute in double precision, with constants for random numbers.

    The logits of experts that may not be chosen become minus infinity.
    """

    def __init__(self, experts: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.experts = experts

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, or what stands for it."""
        kwargs = dict(kwargs or {})
        if func in (torch.rand, torch.randn):
            size = args[0] if args and not isinstance(args[0], int) else args
            return torch.full(kwargs.pop("size", size), 0.5, dtype=torch.float64)
        if func in (torch.rand_like, torch.randn_like):
            return torch.full_like(args[0], 0.5)
        if getattr(func, "__name__", "").endswith("grouped_mm"):  # none for double
            return _matrix_by_group(args[0], args[1], kwargs["offs"])
        if func is Tensor.float:
            func = Tensor.double
        if func is not Tensor.dtype.__get__:
            args = tuple(_widened(item) for item in args)
            kwargs = {key: _widened(item) for key, item in kwargs.items()}
        result = func(*args, **kwargs)
        if self.experts and func in (nn.functional.linear, Tensor.matmul):
            dropped = self.experts.get(id(args[1]))
            if dropped is not None:
                result = result.masked_fill(dropped, -torch.inf)
        return result


def _matrix_by_group(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply each group of rows, which ends before its end, by its own matrix."""
    parts, start = [], 0
    for end, weight in zip(ends.tolist(), weights, strict=True):
        parts.append(rows[start:end] @ weight)
        start = end
    return torch.cat([*parts, rows.new_zeros(len(rows) - start, weights.shape[-1])])


def _widened(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    return torch.complex128 if value is torch.complex64 else value
