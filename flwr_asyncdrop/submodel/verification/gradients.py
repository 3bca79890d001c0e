"""Compare what training does to a narrower model with what it does to the full one.

Outputs that agree for all weights have gradients that do, unless code has a word in
them: an autograd function of its own, a hook, `detach`, an estimate that passes a
gradient straight through. What a pass writes on buffers need not show in its outputs: a
statistic may be read in eval mode alone. Nor need a part of the loss that a module
keeps in an attribute.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from flwr_asyncdrop.readable import kind_and_line
from flwr_asyncdrop.submodel.narrowing.narrow import narrow
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probing.generators import same_random_state
from flwr_asyncdrop.submodel.probing.held import cut, holding, silencing, taken
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.nested import tensors_within
from flwr_asyncdrop.submodel.probing.passes import Pass, in_precision
from flwr_asyncdrop.submodel.probing.precision import converted, own_precision
from flwr_asyncdrop.submodel.probing.probe import Probe
from flwr_asyncdrop.submodel.probing.running_passes import num_weights
from flwr_asyncdrop.submodel.types import (
    Indices,
    State,
    is_inexact,
    shapes_of,
    tensors_of,
)
from flwr_asyncdrop.submodel.verification.training import few
from flwr_asyncdrop.submodel.verification.verify import TINY, bisect

# By precision; the second of the largest gradient of all, since others may be nothing
# but what is left of sums that cancel, as all may be: of those the third.
_TOLERANCES = {torch.float64: (1e-6, 1e-9, 1e-13), torch.float32: (0.02, 1e-3, 1e-6)}
_MOST = 250_000_000  # weights of which there is a copy in double precision
_STATE = ("_parameters", "_buffers", "_modules")
_OTHER = "a narrower model has other gradients than the full one with units silenced"
_OTHER_BUFFERS = (
    "a narrower model writes other values on its buffers in training than the full one "
    "with units silenced"
)
_OTHER_STATE = (
    "{name}, which the model's state_dict computes, would have another shape in a "
    "submodel than where it is merged"
)


def find_other_gradients(probe: Probe, plan: Plan) -> dict[int, str]:
    """Return which groups of a verified plan have other gradients or buffers, and why.

    They are compared on the first pass in training mode, with few units of each group:
    in double precision, unless the model is one of the largest or does not train in it.
    Without a unit of a stream, or an expert, another model trains.
    """
    way = next((way for way in probe.passes if way.training and way.watched), None)
    if way is None:
        return {}
    numbers = range(len(plan.groups))
    exact = [n for n in numbers if plan.groups[n].kind not in ("stream", "expert")]
    precisions = [probe.dtype]
    if probe.dtype is torch.float32 and num_weights(probe.model) <= _MOST:
        precisions.insert(0, torch.float64)

    def fault(groups: Sequence[int]) -> str | None:
        kept = plan.indices(few(plan, groups))
        while precisions:
            dtype = precisions[0]
            try:
                return _fault(probe, in_precision(way, dtype), dtype, kept)
            except _DoesNotTrainError:
                del precisions[0]
        return None  # find_untrainable says so

    return bisect(exact, fault)


class _DoesNotTrainError(Exception):
    """The full model does not, in this precision."""


def _fault(probe: Probe, way: Pass, dtype: torch.dtype, kept: Indices) -> str | None:
    """Return what differs in a submodel of `kept` positions, if anything."""
    model = probe.model
    # A unit may be divided by its own length: with zeros no gradient is a number.
    for value in (0.0, TINY[probe.dtype]):
        gradients = _Gradients(kept)
        try:
            with silencing(model, kept, value), converted(model, dtype):
                written = _train(model, way, probe.written, gradients.add)
        except Exception as error:  # whatever the model's own code raises
            raise _DoesNotTrainError from error
        if gradients.finite:
            break
    else:
        return None
    state = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    narrowed = taken(state, kept)
    shapes = shapes_of(state | narrowed)
    small = narrow(model, shapes, make=torch.empty)
    try:
        with holding(small, state | narrowed), converted(small, dtype):
            rewritten = _train(small, way, probe.written, gradients.subtract)
    except Exception as error:  # whatever the model's own code raises
        return f"a submodel does not train ({kind_and_line(error)})"
    if not gradients.agree(dtype):
        return _OTHER
    expected = {
        name: cut(tensor, kept.get(name, {})) for name, tensor in written.items()
    }
    for name, tensor in expected.items():
        if rewritten[name].shape != tensor.shape:
            return _OTHER_STATE.format(name=name)
    if not all(_close(rewritten[n], expected[n], dtype) for n in expected):
        return _OTHER_BUFFERS
    return None


class _Gradients:
    """Those of a model at kept positions, less those of a narrower one.

    Each is taken as it comes: all of a large model's are as much memory as it has.
    """

    def __init__(self, kept: Indices) -> None:
        self.finite = True
        """Whether all of the model's gradients are, at other positions as well."""

        self._kept = kept
        self._largest = 0.0  # at any position
        self._sizes: dict[str, float] = {}  # by name, at kept positions
        self._rest: State = {}

    def add(self, name: str, gradient: Tensor) -> None:
        """Take a gradient of the model, or a part of it."""
        largest = _largest(gradient)
        self.finite &= math.isfinite(largest)
        self._largest = max(self._largest, largest)
        part = cut(gradient, self._kept.get(name, {}))
        known = self._rest.get(name)
        self._rest[name] = part if known is None else known.add_(part)
        self._sizes[name] = _largest(self._rest[name])

    def subtract(self, name: str, gradient: Tensor) -> None:
        """Take one of the narrower model."""
        known = self._rest.get(name)
        self._rest[name] = gradient if known is None else known.sub_(gradient)

    def agree(self, dtype: torch.dtype) -> bool:
        """Tell whether nothing but rounding is left."""
        own, other, rounding = _TOLERANCES[dtype]
        least = other * self._largest + rounding
        return all(
            _largest(rest) <= own * self._sizes.get(name, 0.0) + least
            for name, rest in self._rest.items()
        )


def _train(
    model: nn.Module,
    way: Pass,
    written: frozenset[str],
    take: Callable[[str, Tensor], None],
) -> State:
    """Run a pass forward and backward; return what it may have written on.

    That are buffers and the parameters that are `written`. `take` gets the gradients.
    """
    tensors = tensors_of(model)
    generator = torch.Generator().manual_seed(0)
    model.train(way.training)
    with (
        kept_state(model, written),
        torch.enable_grad(),
        torch.autograd.set_detect_anomaly(False),  # zeros may divide by zero
        same_random_state(model),
        warnings.catch_warnings(action="ignore"),
        way.draws(),
        own_precision(model),
        _taking(tensors, take),
    ):
        before = list(_kept_in(model))
        outputs = tensors_within(way.cast(Tensor.clone).example.run(model))
        outputs += _new_losses(model, before)
        losses = [
            _loss(output, generator) for output in outputs if output.requires_grad
        ]
        if losses:
            torch.autograd.backward(losses)
        return {
            name: tensor.detach().clone()
            for name, tensor in tensors.items()
            if name in written or not isinstance(tensor, nn.Parameter)
        }


@contextmanager
def _taking(tensors: State, take: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Give gradients of tensors to `take` as they come; of tied ones by one name."""

    def given(name: str, tensor: Tensor) -> None:
        gradient, tensor.grad = tensor.grad, None
        if gradient is not None:
            take(name, gradient.to_dense())

    with ExitStack() as stack:
        for tensor, name in {t: n for n, t in tensors.items()}.items():
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                tensor.grad = None
                hook = tensor.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(given, name)
                )
                stack.callback(hook.remove)
        yield


def _kept_in(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that modules keep in attributes."""
    for module in model.modules():
        own = [v for name, v in vars(module).items() if name not in _STATE]
        yield from tensors_within(own)


def _new_losses(model: nn.Module, before: Sequence[Tensor]) -> list[Tensor]:
    """Return the numbers that a pass keeps in attributes, beside those of `before`.

    Those with gradients are added to a loss, such as a penalty or a divergence; of a
    vector, such as one number for each example, the sum is.
    """
    known = set(map(id, before))
    new = {
        id(kept): kept
        for kept in _kept_in(model)
        if kept.requires_grad and kept.dim() < 2 and id(kept) not in known
    }
    return [kept.sum() for kept in new.values()]


def _close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    if not is_inexact(expected):
        return torch.equal(found, expected)
    finite = expected.isfinite()  # silenced units may have divided by zero
    found, expected = found[finite], expected[finite]
    own, other, rounding = _TOLERANCES[dtype]
    allowed = own * _largest(expected) + other + rounding
    return bool(((found - expected).abs() <= allowed).all())


def _largest(tensor: Tensor) -> float:
    """Return the largest absolute value, or what is not finite; it makes no copy."""
    if not tensor.numel():
        return 0.0
    if tensor.is_complex():
        return float(vector_norm(tensor, math.inf))
    # Nine times as fast as the norm
    return max(abs(float(extreme)) for extreme in tensor.aminmax())


def _loss(output: Tensor, generator: torch.Generator) -> Tensor:
    """Return a sum of the output's elements, none of which weighs what another does."""
    weights = torch.rand(output.shape, generator=generator, dtype=torch.float64) + 0.5
    return (output.abs() if output.is_complex() else output).mul(weights).sum()
