"""Compare the gradients of a narrower model with those of the full one.

Outputs that agree for all weights have gradients that do, unless code has a word in
them: an autograd function of its own, a hook, `detach`, an estimate that passes a
gradient straight through.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flwr_asyncdrop.readable import first_line
from flwr_asyncdrop.submodel.draws import FixedDraws, same_random_state
from flwr_asyncdrop.submodel.held import holding, silencing, taken
from flwr_asyncdrop.submodel.kept_state import kept_state
from flwr_asyncdrop.submodel.narrow import narrow
from flwr_asyncdrop.submodel.nested import tensors_within
from flwr_asyncdrop.submodel.passes import Pass
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.precision import own_precision
from flwr_asyncdrop.submodel.probe import Probe, num_weights
from flwr_asyncdrop.submodel.training import few
from flwr_asyncdrop.submodel.types import Indices, State, tensors_of
from flwr_asyncdrop.submodel.verify import bisect

# By precision; the second of the largest gradient of all, since others may be nothing
# but what is left of sums that cancel, as all may be: of those the third.
_TOLERANCES = {torch.float64: (1e-6, 1e-9, 1e-13), torch.float32: (0.02, 1e-3, 1e-6)}
_MOST = 50_000_000  # weights
_OTHER = "a narrower model has other gradients than the full one with units silenced"


def find_other_gradients(probe: Probe, plan: Plan) -> dict[int, str]:
    """Return which groups of a verified plan have other gradients, and why.

    They are compared on the first pass in training mode, with few units of each group.
    Not of the largest models, of which all gradients at once take too much memory.
    Without a unit of a stream, or an expert, another model trains.
    """
    way = next((way for way in probe.passes if way.training and way.watched), None)
    if way is None or num_weights(probe.model) > _MOST:
        return {}
    numbers = range(len(plan.groups))
    exact = [n for n in numbers if plan.groups[n].kind not in ("stream", "expert")]

    def fault(groups: Sequence[int]) -> str | None:
        return _fault(probe, plan.indices(few(plan, groups)), way)

    return bisect(exact, fault)


def _fault(probe: Probe, kept: Indices, way: Pass) -> str | None:
    model = probe.model
    try:
        with silencing(model, kept, 0.0):
            whole = _gradients(model, way, probe.written)
    except Exception:  # whatever the model's own code raises: find_untrainable says so
        return None
    if not all(bool(gradient.isfinite().all()) for gradient in whole.values()):
        return None
    trained = {name: dims for name, dims in kept.items() if name in whole}
    expected = whole | taken(whole, trained)
    state = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    narrowed = taken(state, kept)
    shapes = {name: tuple(tensor.shape) for name, tensor in (state | narrowed).items()}
    small = narrow(model, shapes, make=torch.empty)
    try:
        with holding(small, state | narrowed):
            found = _gradients(small, way, probe.written)
    except Exception as error:  # whatever the model's own code raises
        kind, line = type(error).__name__, first_line(error)
        return f"a submodel does not train ({kind}: {line})"
    scale = max(map(_largest, whole.values()), default=0.0)
    same = (_close(found[n], expected[n], scale, probe.dtype) for n in whole)
    return None if all(same) else _OTHER


def _gradients(model: nn.Module, way: Pass, written: frozenset[str]) -> State:
    """Return the gradient of each parameter that trains; zeros where there is none."""
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
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
        for name, p in parameters.items()
    }
    for parameter in parameters.values():
        parameter.grad = None
    return gradients


def _close(found: Tensor, expected: Tensor, scale: float, dtype: torch.dtype) -> bool:
    own, rest, rounding = _TOLERANCES[dtype]
    allowed = own * _largest(expected) + rest * scale + rounding
    return _largest(found - expected) <= allowed


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _trains(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _loss(output: Tensor, generator: torch.Generator) -> Tensor:
    """Return a sum of the output's elements, none of which weighs what another does."""
    weights = torch.rand(output.shape, generator=generator, dtype=torch.float64) + 0.5
    return (output.abs() if output.is_complex() else output).mul(weights).sum()
