"""Find the modules that only add to their input, by trying them with zeros."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from flwr_asyncdrop.submodel.probing.probe import Probe
from flwr_asyncdrop.submodel.types import tensors_of

# What counts as a change of what a module adds, relative to it.
_SOME = 1e-3
# How much larger an input may be that a block passes on: one that bounds it does not.
_MUCH = 100.0


def residual_modules(probe: Probe) -> tuple[str, ...]:
    """Return the modules that add something to their input, and nothing if zeroed.

    What they add depends on the input: a layer that adds a bias or an encoding of the
    position is none of them. Nested ones count, the model itself does not. Run under
    ``plain_kernels``.
    """
    return tuple(
        name
        for name, calls in _calls(probe).items()
        if all(_is_residual(call) for call in calls)
    )


class _Call(NamedTuple):
    """A module that keeps the shape of its input, and what it was called with."""

    module: nn.Module
    input: Tensor
    others: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def with_input(self, tensor: Tensor) -> Tensor:
        first, others, keywords = _copied((tensor, self.others, self.keywords))
        output: Tensor = self.module(first, *others, **keywords)
        return output


@dataclass
class _Watch:
    """The hooks that collect the calls of one module."""

    calls: list[_Call] = field(default_factory=list)
    keeps_shape: bool = True
    _running: list[Any] = field(default_factory=list)

    def before(
        self, _: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._running.append(_copied((args, keywords)))

    def after(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        args, keywords = self._running.pop()
        if args and _alike(args[0], output):
            self.calls.append(_Call(module, args[0], args[1:], keywords))
        else:
            self.keeps_shape = False


def _copied(arguments: Any) -> Any:
    """Copy the tensors: models may write on what they are given."""
    return tree_map_only(Tensor, Tensor.clone, arguments)


def _calls(probe: Probe) -> dict[str, list[_Call]]:
    """Return the calls of all modules with parameters that keep the input's shape."""
    watches: dict[str, _Watch] = {}
    with ExitStack() as hooks:
        for name, module in probe.model.named_modules():
            if name and any(True for _ in module.parameters()):
                watch = watches[name] = _Watch()
                before = module.register_forward_pre_hook(
                    watch.before, with_kwargs=True
                )
                hooks.callback(before.remove)
                hooks.callback(module.register_forward_hook(watch.after).remove)
        probe.run()
    return {
        name: watch.calls
        for name, watch in watches.items()
        if watch.calls and watch.keeps_shape
    }


def _is_residual(call: _Call) -> bool:
    try:
        with zeroed(call.module):
            for given in (call.input, _MUCH * call.input):
                if not torch.equal(call.with_input(given), given):
                    return False
        other = call.input.flip(tuple(range(call.input.dim())))
        added = call.with_input(call.input) - call.input
        added_elsewhere = call.with_input(other) - other
    except Exception:  # whatever the module's own code raises
        return False
    change = (added_elsewhere - added).abs().max()
    return bool(change > _SOME * added.abs().max())


@contextmanager
def zeroed(module: nn.Module) -> Iterator[None]:
    """Zero all tensors of `module`'s state; put their values back on leaving."""
    tensors = list(tensors_of(module).values())
    saved = [tensor.clone() for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.zero_()
        yield
    finally:
        for tensor, values in zip(tensors, saved, strict=True):
            tensor.copy_(values)


def _alike(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and one.is_floating_point()
        and (one.shape, one.dtype) == (other.shape, other.dtype)
    )
