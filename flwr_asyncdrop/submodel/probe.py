"""A copy of the user's model on which units are discovered and verified."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel.experts import use_tensor_operations
from flwr_asyncdrop.submodel.nested import leaves, map_tensors
from flwr_asyncdrop.submodel.types import Example, tensors_of

_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3}


@dataclass(frozen=True)
class Probe:
    """A private copy of a model, in eval mode on the CPU, with inputs that it takes."""

    model: nn.Module  # its tensors may be overwritten
    example: Example
    tolerance: float  # of rounding, relative to the largest value

    def run(self, model: nn.Module | None = None) -> list[Any]:
        """Return the leaves of the output of `model`, by default the probe's own."""
        torch.manual_seed(0)  # the same random numbers each time
        return list(leaves(self.fresh_example().run(model or self.model)))

    def fresh_example(self) -> Example:
        """Return a copy of the inputs: models may write on what they are given."""
        return mapped(self.example, Tensor.clone)

    def varied(self, generator: torch.Generator) -> "Probe":
        """Return a probe with noise, as large as they are, on floating-point inputs."""

        def vary(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            noise = torch.empty_like(tensor).normal_(generator=generator)
            return tensor + tensor.abs().mean() * noise

        return replace(self, example=mapped(self.example, vary))


def make_probe(model: nn.Module, example: Example) -> Probe:
    """Return the first of the `probes` that runs, or raise UnsupportedModelError."""
    failure: Exception | None = None
    for probe in probes(model, example):
        try:
            probe.run()
        except Exception as error:
            failure = error
        else:
            return probe
    raise UnsupportedModelError(
        f"{type(model).__name__} does not run on the example inputs "
        f"({first_line(failure)}): pass inputs as its forward takes them: a tensor, "
        "a tuple of arguments or a dict of keyword arguments"
    ) from failure


def probes(model: nn.Module, example: Example) -> Iterator[Probe]:
    """Copy `model` for probing: in double precision, then, if need be, in single.

    Tensors that hold one value throughout, like a new batch normalisation's, get
    random ones: positions that are mixed up must show.
    """
    generator = torch.Generator().manual_seed(0)
    for dtype, tolerance in _TOLERANCES.items():
        try:
            copied = _copy(model, dtype)
        except Exception as error:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be copied ({first_line(error)}): keep "
                "no tensors with a gradient history, files or locks in its attributes"
            ) from error
        use_tensor_operations(copied)
        for tensor in tensors_of(copied).values():
            if tensor.is_floating_point() and _is_constant(tensor):
                tensor.data.uniform_(0.5, 1.5, generator=generator)
        yield Probe(copied, _probe_inputs(example, dtype, generator), tolerance)


def _copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Copy `model` to the CPU in eval mode, each large tensor only once."""
    memo: dict[int, Any] = {
        id(tensor): nn.Parameter(
            tensor.detach().to("cpu", dtype, copy=True), tensor.requires_grad
        )
        for tensor in model.parameters()
        if type(tensor) is nn.Parameter and tensor.is_floating_point()
    }
    return copy.deepcopy(model, memo).to("cpu", dtype).eval()


def _probe_inputs(
    example: Example, dtype: torch.dtype, generator: torch.Generator
) -> Example:
    """Return copies of the inputs; blank floating-point ones become noise."""

    def prepare(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.detach().to("cpu", copy=True)
        copied = tensor.detach().to("cpu", dtype, copy=True)
        if _is_constant(copied):
            copied.normal_(generator=generator)
        return copied

    return mapped(example, prepare)


def mapped(example: Example, function: Callable[[Tensor], Tensor]) -> Example:
    """Return the example with `function` applied to its tensors."""
    return Example(
        map_tensors(function, example.args), map_tensors(function, example.kwargs)
    )


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())


def first_line(error: Exception | None) -> str:
    """Return what an error says first, to be quoted in the message of another."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
