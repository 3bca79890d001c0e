"""A copy of the user's model on which units are discovered and verified."""

import copy
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel.derived import derived_tensors
from flwr_asyncdrop.submodel.draws import EXTREMES, FixedDraws, same_random_state
from flwr_asyncdrop.submodel.experts import use_tensor_operations
from flwr_asyncdrop.submodel.nested import leaves
from flwr_asyncdrop.submodel.passes import Pass, mapped, variations
from flwr_asyncdrop.submodel.precision import own_precision
from flwr_asyncdrop.submodel.types import Example, tensors_of

# A model of more bytes is probed in single precision: a copy in double precision would
# take more than twice its memory.
_LARGE = 32 * 2**20
_MANY = 2_000_000  # weights
_NOISE = 0.1  # on the weights, relative to the usual scale: none is then tiny
_PLAIN = (bool, int, float, str, tuple, type(None))
_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


@dataclass(frozen=True)
class Probe:
    """A private copy of a model on the CPU, and the ways in which it runs.

    Attributes
    ----------
    model : Module
        Its tensors may be overwritten. Weights have noise, and values that are the
        same throughout a tensor are random: positions that are mixed up must show.
    passes : tuple of Pass
        All of them run. The example inputs come first.
    dtype : torch.dtype
        Of its real numbers: float64, or float32 for large models.
    """

    model: nn.Module
    passes: tuple[Pass, ...]
    dtype: torch.dtype

    @property
    def training_example(self) -> Example:
        """The inputs of the first pass in training mode, if there is one."""
        ways = sorted(self.passes, key=lambda way: not way.training)
        return ways[0].example

    def run(self, model: nn.Module | None = None) -> list[Any]:
        """Return what `model`, by default the probe's own, gives on the first pass."""
        return run(model or self.model, self.passes[0])


def is_large(model: nn.Module) -> bool:
    """Tell whether runs of `model` are too costly for many of them."""
    return sum(tensor.numel() for tensor in model.parameters()) > _MANY


def run(model: nn.Module, way: Pass, draws: FixedDraws | None = None) -> list[Any]:
    """Return the leaves of what `model` gives on a pass; it may change its buffers."""
    model.train(way.training)
    with ExitStack() as stack:
        stack.enter_context(same_random_state())
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        if way.watched:
            stack.enter_context(draws or FixedDraws(way.level, way.outcomes))
            stack.enter_context(own_precision(model))
        # Models may write on what they are given.
        return list(leaves(way.cast(Tensor.clone).example.run(model)))


def make_probe(model: nn.Module, examples: Sequence[Example]) -> Probe:
    """Copy `model` for probing, and find out how it runs.

    In double precision, unless it is large or runs in single precision only.

    Raises
    ------
    UnsupportedModelError
        If it cannot be copied, or does not run on every example in some mode, or runs
        nowhere in training mode.
    """
    name = type(model).__name__
    _check_kind(model)
    size = sum(t.numel() * t.element_size() for t in tensors_of(model).values())
    failure: Exception | None = None
    for dtype in (torch.float64, torch.float32)[size > _LARGE :]:
        copied = _copy(model, dtype)
        try:
            probe = Probe(copied, _passes(copied, examples, dtype), dtype)
            _check_outputs(name, probe)
            return probe
        except UnsupportedModelError:
            raise
        except _DoesNotTrainError as error:
            failure = failure or error
        except Exception as error:  # whatever the model's own code raises
            failure = error
    if isinstance(failure, _DoesNotTrainError):
        raise UnsupportedModelError(
            f"{name} does not run in training mode ({failure}): pass example inputs as "
            "training does, with targets if it takes them then"
        ) from failure
    raise UnsupportedModelError(
        f"{name} does not run on the example inputs ({first_line(failure)}): pass "
        "inputs as its forward takes them: a tensor, a tuple of arguments or a dict of "
        "keyword arguments"
    ) from failure


class _DoesNotTrainError(Exception):
    pass


def _check_outputs(name: str, probe: Probe) -> None:
    """Refuse a model of which nothing could be compared."""
    for way in probe.passes:
        with kept_state(probe.model):
            outputs = run(probe.model, way)
        if any(isinstance(k, Tensor) and bool(k.isfinite().any()) for k in outputs):
            return
    raise UnsupportedModelError(
        f"{name} gives no finite number on the example inputs, so that no plan could "
        "be verified: pass inputs on which it does"
    )


def _check_kind(model: nn.Module) -> None:
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise UnsupportedModelError(
            f"{type(model).__name__} has parameters without a shape yet: run it once "
            "before its units are planned"
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UnsupportedModelError(
            f"{type(model).__name__} is compiled by TorchScript, whose modules cannot "
            "be made narrower: pass the module that it was made from"
        )
    for name, tensor in tensors_of(model).items():
        if tensor.layout is not torch.strided:
            raise UnsupportedModelError(
                f"{name} of {type(model).__name__} is sparse, and sparse tensors are "
                "not sent: pass it as an input, or register it as a buffer with "
                "persistent=False"
            )


def _copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Copy `model` to the CPU, each tensor only once; make its weights generic."""
    try:
        memo: dict[int, Any] = {
            id(tensor): _converted(tensor, dtype)
            for tensor in itertools.chain(model.parameters(), model.buffers())
            if type(tensor) in (Tensor, nn.Parameter)
        }
        copied = copy.deepcopy(model, memo | derived_tensors(model))
        use_tensor_operations(copied)
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied ({first_line(error)}): keep "
            "no tensors with a gradient history, files or locks in its attributes"
        ) from error
    generator = torch.Generator().manual_seed(0)
    for tensor in {id(t): t for t in tensors_of(copied).values()}.values():
        if tensor.is_floating_point() or tensor.is_complex():
            is_parameter = isinstance(tensor, nn.Parameter)
            _make_generic(tensor.detach(), is_parameter, generator)
    return copied


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy on the CPU; what lies on the device meta gets zeros, masks ones."""
    real = tensor.is_floating_point()
    kind = dtype if real else _COMPLEX[dtype] if tensor.is_complex() else tensor.dtype
    if tensor.is_meta:
        copied = torch.zeros(tensor.shape, dtype=kind)
        if kind is torch.bool:
            copied.fill_(True)
    else:
        copied = tensor.detach().to("cpu", kind, copy=True)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copied, requires_grad=tensor.requires_grad)
    return copied


def _make_generic(
    tensor: Tensor, is_parameter: bool, generator: torch.Generator
) -> None:
    """Make values differ, and none tiny: what is multiplied with 0 or 1e-9 hides."""
    fresh = torch.empty_like(tensor)
    if is_parameter and tensor.dim() > 1 and tensor.numel():
        spread = 1 / math.sqrt(tensor[0].numel())
        scale = spread if _is_constant(tensor) else _NOISE * spread
        tensor.add_(fresh.normal_(0, scale, generator=generator))
    elif _is_constant(tensor):
        drawn = fresh.real.uniform_(0.5, 1.5, generator=generator)
        tensor.copy_(drawn)
    elif is_parameter and tensor.numel() == 1:
        tensor.add_(torch.where(tensor.abs() < _NOISE, 1.0, 0.0))
    elif is_parameter:
        tensor.add_(fresh.normal_(0, _NOISE, generator=generator))


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())


def _passes(
    model: nn.Module, examples: Sequence[Example], dtype: torch.dtype
) -> tuple[Pass, ...]:
    """Return passes that run: the examples, and variations of the first, in both modes.

    Raises what the model raises if an example runs in neither mode.
    """
    generator = torch.Generator().manual_seed(0)

    def prepare(tensor: Tensor) -> Tensor:
        return _prepared(tensor, dtype, generator)

    found: list[Pass] = []
    drawn: list[Pass] = []  # passes that depend on random numbers
    for example in examples:
        prepared = mapped(example, prepare)
        ways = [Pass(prepared, training) for training in (False, True)]
        failures = [_failure(model, way, drawn) for way in ways]
        if all(failures):
            unwatched = Pass(prepared, training=False, watched=False)
            if _failure(model, unwatched) is not None:
                raise next(failure for failure in failures if failure)
            found.append(unwatched)
        both = zip(ways, failures, strict=True)
        found += [way for way, failure in both if failure is None]
    if not found[0].watched:
        return tuple(found)
    varied = list(_varied(model, found[0].example, drawn))
    if is_large(model) and len(examples) == 1 and varied and varied[0].training:
        found = found[:1]  # one in training mode will do
    found += varied
    trained = [way for way in found if way.training]
    if not trained:
        raise _DoesNotTrainError(first_line(failures[1])) from failures[1]
    for training in (True, False):
        found += _at_extremes(model, [way for way in drawn if way.training is training])
    return tuple(found)


def _varied(model: nn.Module, example: Example, drawn: list[Pass]) -> Iterator[Pass]:
    """Yield variations that run, in training mode and in eval mode by turns."""
    rows = [len(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)]
    thorough = not is_large(model)
    kinds = variations(example, min(rows, default=0), thorough=thorough)
    training = True
    for alternatives in kinds:
        for varied in alternatives:
            ways = (Pass(varied, mode) for mode in (training, not training))
            failures = ((way, _failure(model, way, drawn)) for way in ways)
            running = next((way for way, why in failures if why is None), None)
            if running is not None:
                yield running
                training = not running.training
                break


def _at_extremes(model: nn.Module, ways: Sequence[Pass]) -> Iterator[Pass]:
    """Yield the first of the passes with small and with large random numbers."""
    extremes = [replace(way, level=level) for way in ways[:1] for level in EXTREMES]
    yield from (way for way in extremes if _failure(model, way) is None)


def _failure(
    model: nn.Module, way: Pass, drawn: list[Pass] | None = None
) -> Exception | None:
    """Return what a pass raises; add it to `drawn` if random numbers matter to it."""
    draws = FixedDraws(way.level, way.outcomes)
    try:
        with kept_state(model):
            run(model, way, draws)
    except Exception as error:  # whatever the model's own code raises
        return error
    if drawn is not None and draws.uses_level:
        drawn.append(way)
    return None


@contextmanager
def kept_state(model: nn.Module) -> Iterator[None]:
    """Put the model's buffers and plain attributes back on leaving.

    A pass in training mode changes statistics, and some models adapt attributes to the
    sizes that they see. Hooks and what goes with them stay: some are set up once.
    """
    modules = list(model.modules())
    plain = [
        (module, {k: v for k, v in vars(module).items() if isinstance(v, _PLAIN)})
        for module in modules
    ]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, attributes in plain:
            vars(module).update(attributes)
        for module, name, buffer, values in buffers:
            module._buffers[name] = buffer
            buffer.data.copy_(values)


def _prepared(tensor: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return a copy of an input in `dtype`; a blank one becomes noise."""
    if tensor.is_meta:
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    if not tensor.is_floating_point():
        kind = _COMPLEX[dtype] if tensor.is_complex() else tensor.dtype
        return tensor.detach().to("cpu", kind, copy=True)
    copied = tensor.detach().to("cpu", dtype, copy=True)
    if copied.layout is torch.strided and _is_constant(copied):
        copied.normal_(generator=generator)
    return copied


def first_line(error: BaseException | None) -> str:
    """Return what an error says first, to be quoted in the message of another."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
