"""Compare what training does to a narrower model with what it does to the full one.

Outputs that agree for all weights have gradients that do, unless code has a word in
them: an autograd function of its own, a hook, `detach`, an estimate that passes a
gradient straight through. What a pass writes on buffers need not show in its outputs: a
statistic may be read in eval mode alone.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from flwr_asyncdrop.readable import first_line
from flwr_asyncdrop.submodel.draws import FixedDraws, same_random_state
from flwr_asyncdrop.submodel.held import holding, silencing, taken
from flwr_asyncdrop.submodel.kept_state import kept_state
from flwr_asyncdrop.submodel.narrow import narrow
from flwr_asyncdrop.submodel.nested import tensors_within
from flwr_asyncdrop.submodel.passes import Pass, in_precision
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.precision import own_precision
from flwr_asyncdrop.submodel.private_copy import private_copy
from flwr_asyncdrop.submodel.probe import Probe, num_weights
from flwr_asyncdrop.submodel.training import few
from flwr_asyncdrop.submodel.types import Indices, State, tensors_of
from flwr_asyncdrop.submodel.verify import bisect

# By precision; the second of the largest gradient of all, since others may be nothing
# but what is left of sums that cancel, as all may be: of those the third.
_TOLERANCES = {torch.float64: (1e-6, 1e-9, 1e-13), torch.float32: (0.02, 1e-3, 1e-6)}
_MOST = 50_000_000  # weights
_OTHER = "a narrower model has other gradients than the full one with units silenced"
_OTHER_BUFFERS = (
    "a narrower model writes other values on its buffers in training than the full one "
    "with units silenced"
)


def find_other_gradients(probe: Probe, plan: Plan) -> dict[int, str]:
    """Return which groups of a verified plan have other gradients or buffers, and why.

    They are compared on the first pass in training mode, with few units of each group.
    Not of the largest models, of which all gradients at once take too much memory.
    Without a unit of a stream, or an expert, another model trains.
    """
    way = next((way for way in probe.passes if way.training and way.watched), None)
    if way is None or num_weights(probe.model) > _MOST:
        return {}
    numbers = range(len(plan.groups))
    exact = [n for n in numbers if plan.groups[n].kind not in ("stream", "expert")]

    @cache
    def doubled() -> tuple[Probe, Pass] | None:
        return _doubled(probe, way)

    def fault(groups: Sequence[int]) -> str | None:
        kept = plan.indices(few(plan, groups))
        found = _fault(probe, kept, way)
        if found is None or probe.dtype is torch.float64:
            return found
        # Rounding, perhaps: a normalisation over few values may make much of it
        exactly = doubled()
        return found if exactly is None else _fault(exactly[0], kept, exactly[1])

    return bisect(exact, fault)


def _doubled(probe: Probe, way: Pass) -> tuple[Probe, Pass] | None:
    """Return both in double precision; None if the model does not train in it."""
    try:
        model = private_copy(probe.model, torch.float64, noise=0.0)
        way = in_precision(way, torch.float64)
        _trained(model, way, probe.written)
    except Exception:  # whatever the model's own code raises, or no memory for it
        return None
    return replace(probe, model=model, passes=(way,), dtype=torch.float64), way


def _fault(probe: Probe, kept: Indices, way: Pass) -> str | None:
    model = probe.model
    try:
        with silencing(model, kept, 0.0):
            whole, written = _trained(model, way, probe.written)
    except Exception:  # whatever the model's own code raises: find_untrainable says so
        return None
    if not all(bool(gradient.isfinite().all()) for gradient in whole.values()):
        return None
    state = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    narrowed = taken(state, kept)
    shapes = {name: tuple(tensor.shape) for name, tensor in (state | narrowed).items()}
    small = narrow(model, shapes, make=torch.empty)
    try:
        with holding(small, state | narrowed):
            found, rewritten = _trained(small, way, probe.written)
    except Exception as error:  # whatever the model's own code raises
        kind, line = type(error).__name__, first_line(error)
        return f"a submodel does not train ({kind}: {line})"
    scale = max(map(_largest, whole.values()), default=0.0)
    if not _agree(found, _cut(whole, kept), scale, probe.dtype):
        return _OTHER
    if not _agree(rewritten, _cut(written, kept), 1.0, probe.dtype):
        return _OTHER_BUFFERS
    return None


def _cut(state: State, kept: Indices) -> State:
    """Return tensors of the full model, with kept positions alone."""
    return state | taken(state, {n: dims for n, dims in kept.items() if n in state})


def _trained(
    model: nn.Module, way: Pass, written: frozenset[str]
) -> tuple[State, State]:
    """Return the gradients of what trains, and what the pass may have written on.

    That are buffers and the parameters that are `written`. Gradients are zeros where
    there are none.
    """
    parameters = {
        name: tensor for name, tensor in tensors_of(model).items() if _trains(tensor)
    }
    generator = torch.Generator().manual_seed(0)
    model.train(way.training)
    with (
        kept_state(model, written),
        torch.enable_grad(),
        same_random_state(),
        warnings.catch_warnings(action="ignore"),
        FixedDraws(way.level, way.outcomes),
        own_precision(model),
    ):
        outputs = tensors_within(way.cast(Tensor.clone).example.run(model))
        losses = [
            _loss(output, generator) for output in outputs if output.requires_grad
        ]
        if losses:
            torch.autograd.backward(losses)
        after = {
            name: tensor.detach().clone()
            for name, tensor in tensors_of(model).items()
            if name in written or not isinstance(tensor, nn.Parameter)
        }
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
        for name, p in parameters.items()
    }
    for parameter in parameters.values():
        parameter.grad = None
    return gradients, after


def _agree(found: State, expected: State, scale: float, dtype: torch.dtype) -> bool:
    return all(_close(found[n], expected[n], scale, dtype) for n in expected)


def _close(found: Tensor, expected: Tensor, scale: float, dtype: torch.dtype) -> bool:
    if not expected.is_floating_point() and not expected.is_complex():
        return torch.equal(found, expected)
    finite = expected.isfinite()  # silenced units may have divided by zero
    found, expected = found[finite], expected[finite]
    own, rest, rounding = _TOLERANCES[dtype]
    allowed = own * _largest(expected) + rest * scale + rounding
    return bool(((found - expected).abs() <= allowed).all())


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _trains(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _loss(output: Tensor, generator: torch.Generator) -> Tensor:
    """Return a sum of the output's elements, none of which weighs what another does."""
    weights = torch.rand(output.shape, generator=generator, dtype=torch.float64) + 0.5
    return (output.abs() if output.is_complex() else output).mul(weights).sum()
