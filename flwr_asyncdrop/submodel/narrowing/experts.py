"""Mixtures of experts: run them as tensor operations, or without some experts.

A dropped expert is not one that is zeroed, whose logit would still compete with the
others. It is one that cannot be chosen.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from flwr_asyncdrop.submodel.dispatch import DispatchMode
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.types import Indices, tensors_of

aten = torch.ops.aten

IMPLEMENTATION = "_experts_implementation"
"""How Hugging Face's configurations call the choice of a function for experts."""

_TENSOR_OPERATIONS = "batched_mm"  # picks the experts' weights by indexing


def use_tensor_operations(model: nn.Module) -> None:
    """Let mixtures of `model`, a private copy, run without loops over the experts.

    A loop reads from the data which experts it visits, and what follows depends on it.
    """
    for config in _configs(model):
        setattr(config, IMPLEMENTATION, _TENSOR_OPERATIONS)


@contextmanager
def tensor_operations(model: nn.Module) -> Iterator[None]:
    """Do the same to any model for a while: every product is then a plain one."""
    chosen = [(config, getattr(config, IMPLEMENTATION)) for config in _configs(model)]
    try:
        use_tensor_operations(model)
        yield
    finally:
        for config, choice in chosen:
            setattr(config, IMPLEMENTATION, choice)


def _configs(model: nn.Module) -> list[Any]:
    configs = [getattr(module, "config", None) for module in model.modules()]
    found = {id(c): c for c in configs if getattr(c, IMPLEMENTATION, None) is not None}
    return list(found.values())


class UncheckedOneHot(TorchFunctionMode):
    """Encodes numbers without reading whether they are in range."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is nn.functional.one_hot:
            return _one_hot(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        return nn.functional.one_hot(tensor, num_classes)
    zeros = tensor.new_zeros((*tensor.shape, num_classes))
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)


def dropped_experts(plan: Plan, kept: Indices) -> Indices:
    """Return where experts that are not among `kept` lie in what may be a router.

    Both are tensor name -> dim -> positions. A router has one row or column an expert,
    so only tensors of two dims are named; those that are no routers do no harm.
    """
    experts = _are_experts(plan)
    dropped: Indices = {}
    for name, dims in kept.items():
        for dim, positions in dims.items():
            mine = experts[plan.axes[name][dim]]
            mine[positions] = False
            if len(plan.shapes[name]) == 2 and mine.any():
                dropped.setdefault(name, {})[dim] = mine.nonzero().squeeze(1)
    return dropped


def with_all_experts(plan: Plan, kept: Indices) -> Indices:
    """Return the positions `kept`, and those of every expert."""
    experts = _are_experts(plan)
    more: Indices = {}
    for name, dims in kept.items():
        for dim, positions in dims.items():
            mine = experts[plan.axes[name][dim]]
            mine[positions] = True
            if not mine.all():
                more.setdefault(name, {})[dim] = mine.nonzero().squeeze(1)
    return more


def _are_experts(plan: Plan) -> Tensor:
    """Return one flag a unit id, and a last one, False, for id -1."""
    sizes = torch.tensor([*(group.size for group in plan.groups), 1])
    flags = torch.tensor([*(group.kind == "expert" for group in plan.groups), False])
    return flags.repeat_interleave(sizes)


@contextmanager
def without_experts(model: nn.Module, dropped: Indices) -> Iterator[None]:
    """Run `model` so that no router can choose the experts `dropped`.

    `dropped` has positions by tensor name and dim, see `dropped_experts`. The logits
    that a router computes for them are marked by NaN, which any bias and any pointwise
    function passes on, and count as minus infinity wherever the largest are chosen.
    """
    tensors = tensors_of(model)
    routers = [
        _Router(tensors[name], dim, positions)
        for name, dims in dropped.items()
        for dim, positions in dims.items()
    ]
    with _Barred(routers) if routers else nullcontext():
        yield


@dataclass(frozen=True)
class _Router:
    """A weight of two dims, and the experts along one of them that are dropped."""

    weight: Tensor
    dim: int
    dropped: Tensor

    def dim_of(self, tensor: Tensor) -> int | None:
        """Return along which dim of a view of the weight the experts lie."""
        if tensor.data_ptr() != self.weight.data_ptr():
            return None
        mine = self.weight.shape[self.dim], self.weight.stride(self.dim)
        axes = list(zip(tensor.shape, tensor.stride(), strict=True))
        return axes.index(mine) if mine in axes else None


_PRODUCTS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)
_COPIES = (aten._to_copy, aten.clone)
_CHOICES = (
    *(aten._softmax, aten._safe_softmax, aten._log_softmax),
    *(aten.topk, aten.max, aten.argmax, aten.amax),
)


class _Barred(DispatchMode):
    """Marks the logits of dropped experts, and keeps what is marked from a choice."""

    def __init__(self, routers: Sequence[_Router]) -> None:
        super().__init__()
        self._routers = list(routers)

    def operate(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run it, marking logits and passing marked ones over."""
        operation = func.overloadpacket
        if operation in _CHOICES:
            source, *others = args
            args = (_without_marks(source), *others)
        result = func(*args, **kwargs)
        if operation in _PRODUCTS:
            self._mark(args[-2], args[-1], result)
        elif operation in _COPIES:
            self._follow(args[0], result)
        return result

    def _mark(self, left: Tensor, right: Tensor, product: Tensor) -> None:
        last = product.dim() - 1
        for router in self._routers:
            if router.dim_of(left) == last - 1:
                product.index_fill_(last - 1, router.dropped, torch.nan)
            if router.dim_of(right) == last:
                product.index_fill_(last, router.dropped, torch.nan)

    def _follow(self, source: Tensor, copied: Tensor) -> None:
        for router in list(self._routers):
            dim = router.dim_of(source)
            if dim is not None and source.dim() == 2:
                self._routers.append(_Router(copied, dim, router.dropped))


def _without_marks(values: Tensor) -> Tensor:
    if not values.is_floating_point():
        return values
    return torch.where(values.isnan(), -torch.inf, values)
