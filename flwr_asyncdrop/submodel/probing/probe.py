"""A copy of the user's model on which units are discovered and verified."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.readable import first_line
from flwr_asyncdrop.submodel.kernels import one_thread, plain_kernels
from flwr_asyncdrop.submodel.probing.caches import kept_caches
from flwr_asyncdrop.submodel.probing.compare import are_near
from flwr_asyncdrop.submodel.probing.kept_state import kept_state, parameter_sums
from flwr_asyncdrop.submodel.probing.passes import Pass, prepared
from flwr_asyncdrop.submodel.probing.private_copy import private_copy
from flwr_asyncdrop.submodel.probing.running_passes import (
    DoesNotTrainError,
    failure_of,
    find_passes,
    is_large,
    run,
)
from flwr_asyncdrop.submodel.probing.seen import Seen
from flwr_asyncdrop.submodel.types import (
    Example,
    check_initialised,
    check_module,
    tensors_of,
)

# A model of more bytes is probed in single precision: a copy in double precision would
# take more than twice its memory.
_LARGE = 32 * 2**20
_LONG = 0.05  # seconds of a pass on one thread


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
    written : frozenset of str
        The parameters that a pass in training mode changes.
    originals : Mapping of str to Tensor
        The tensors of the model that was copied.
    moving : frozenset of str
        The buffers that a pass changes, such as counts of passes: those of later passes
        have other values.
    """

    model: nn.Module
    passes: tuple[Pass, ...]
    dtype: torch.dtype
    written: frozenset[str] = frozenset()
    originals: Mapping[str, Tensor] = field(default_factory=dict)
    moving: frozenset[str] = frozenset()

    @property
    def training_example(self) -> Example:
        """The inputs of the first pass in training mode, if there is one."""
        ways = sorted(self.passes, key=lambda way: not way.training)
        return ways[0].example

    def run(self, model: nn.Module | None = None) -> list[Any]:
        """Return what `model`, by default the probe's own, gives on the first pass."""
        return run(self.model if model is None else model, self.passes[0])

    def calls_in_a_row(self) -> int:
        """Return how many calls in a row show what the model does; 0 if none do.

        Two if the second gives something else than the first: the model keeps something
        for it, such as its state. None do if a call gives something else each time, as
        of a model that draws from a generator that nobody finds, or that remembers
        something where it is not put back: in a tensor that is no buffer.
        """
        calls, repeats = 1, True
        for way in self._one_of_each_mode():
            with kept_state(self.model, self.written):
                first = run(self.model, way)
                try:
                    second = run(self.model, way)
                except Exception:  # whatever the model's own code raises
                    second, repeats = None, False
            if second is not None and are_near(first, second):
                continue
            with kept_state(self.model, self.written):
                if not are_near(first, run(self.model, way)):
                    return 0
            calls = 2
        return calls if repeats else 1

    def _one_of_each_mode(self) -> Iterable[Pass]:
        return {way.training: way for way in reversed(self.passes)}.values()


@contextmanager
def probing(model: nn.Module, examples: Sequence[Example]) -> Iterator[Probe]:
    """Yield a probe of `model`, to be run inside: kernels are plain, and threads few.

    There are many passes, so each runs on one thread, unless it takes long on it.

    Raises
    ------
    UnsupportedModelError
        If it is of a kind that cannot be probed, or does not run (`make_probe`).
    """
    _check_kind(model)
    with kept_caches(model), plain_kernels(), one_thread() as all_threads:
        large = is_large(model)
        if large:
            all_threads()
        probe = make_probe(model, examples)
        if not large and _seconds(probe) > _LONG:
            all_threads()
        yield probe


def _seconds(probe: Probe) -> float:
    """Return how long a pass takes that nothing watches."""
    start = time.perf_counter()
    failure_of(probe.model, replace(probe.passes[0], watched=False))
    return time.perf_counter() - start


def make_probe(model: nn.Module, examples: Sequence[Example]) -> Probe:
    """Copy `model` for probing, and find out how it runs.

    In double precision, unless it is large or runs in single precision only.

    Raises
    ------
    UnsupportedModelError
        If it cannot be copied, or does not run on every example in some mode, or runs
        nowhere in training mode, or makes tensors of its own when it runs.
    """
    name = type(model).__name__
    size = sum(t.numel() * t.element_size() for t in tensors_of(model).values())
    failure: Exception | None = None
    for dtype in (torch.float64, torch.float32)[size > _LARGE :]:
        copied = private_copy(model, dtype)
        before = parameter_sums(copied)
        try:
            seen = Seen()
            with kept_caches(model):
                passes = find_passes(copied, examples, dtype, seen)
        except DoesNotTrainError as error:
            failure = failure or error
        except Exception as error:  # whatever the model's own code raises
            failure = error
        else:
            _check_complete(model, copied)
            written = _changed(before, copied)
            probe = Probe(copied, passes, dtype, written, tensors_of(model))
            if written:
                probe = replace(probe, model=private_copy(model, dtype))
                seen = _seen_by(probe)
            probe = replace(probe, moving=frozenset(seen.moving))
            return _most_finite(probe, model, *seen.count_finite(passes))
    if _needs_gradients(copied, examples[0], dtype):
        raise UnsupportedModelError(
            f"{name} runs on the example inputs only where gradients are computed "
            f"({first_line(failure)}), and plans are made without: have it do what "
            "needs them only if torch.is_grad_enabled()"
        ) from failure
    if isinstance(failure, DoesNotTrainError):
        raise UnsupportedModelError(
            f"{name} does not run in training mode ({failure}): pass example inputs as "
            "training does, with targets if it takes them then"
        ) from failure
    if isinstance(model, nn.ModuleDict | nn.ModuleList):
        raise UnsupportedModelError(
            f"{name} has no forward: pass one nn.Module whose forward runs them all"
        )
    raise UnsupportedModelError(
        f"{name} does not run on the example inputs ({first_line(failure)}): pass "
        "inputs as its forward takes them: a tensor, a tuple of arguments or a dict of "
        "keyword arguments"
    ) from failure


def _check_complete(model: nn.Module, ran: nn.Module) -> None:
    """Raise UnsupportedModelError if passes of a copy have made tensors of its own."""
    made = sorted(tensors_of(ran).keys() - tensors_of(model).keys())
    if made:
        raise UnsupportedModelError(
            f"{type(model).__name__} has {', '.join(made)} only once it has run: run "
            "it before, in training mode, on the server and on every client"
        )


def _needs_gradients(model: nn.Module, example: Example, dtype: torch.dtype) -> bool:
    """Whether a model that does not run in training mode does so with gradients."""
    try:
        first = next(prepared(example, dtype, torch.Generator().manual_seed(0)))
    except Exception:  # whatever copies of the inputs raise
        return False
    way = Pass(first, training=True)
    if failure_of(model, way) is None:
        return False
    with torch.enable_grad():
        return failure_of(model, way) is None


def _most_finite(noisy: Probe, source: nn.Module, finite: int, numbers: int) -> Probe:
    """Return the probe, or one of `source` without noise if more can be compared then.

    Noise may take a weight out of the range of a root or a logarithm.
    """
    if finite == numbers > 0:
        return noisy
    plain = replace(noisy, model=private_copy(source, noisy.dtype, noise=0.0))
    without_noise, _ = _seen_by(plain).count_finite(plain.passes)
    if max(finite, without_noise) == 0:
        raise UnsupportedModelError(
            f"{type(noisy.model).__name__} gives no finite number on the example "
            "inputs, so that no plan could be verified: pass inputs on which it does"
        )
    return plain if without_noise > finite else noisy


def _seen_by(probe: Probe) -> Seen:
    """Run all passes of a probe again."""
    seen = Seen()
    for way in probe.passes:
        with kept_state(probe.model, probe.written, seen.moving):
            seen.note(way, run(probe.model, way))
    return seen


def _changed(before: Mapping[str, float | complex], model: nn.Module) -> frozenset[str]:
    """Return the parameters that passes have changed: they are not as they were.

    Such as a teacher's, which are averages of those that train, or ones that the first
    batch sets.
    """
    after = parameter_sums(model)
    return frozenset(name for name, total in before.items() if after[name] != total)


def _check_kind(model: nn.Module) -> None:
    check_module(model)
    check_initialised(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = type(model).__name__ + (f".{name}" if name else "")
            raise UnsupportedModelError(
                f"{what} is compiled by TorchScript, whose modules cannot be made "
                "narrower: use the module that it was made from"
            )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in tensors_of(model).items():
        if parameters.get(name, tensor) is not tensor:
            raise UnsupportedModelError(
                f"the state_dict of {type(model).__name__} has a copy of {name}, with "
                "keep_vars=True, too: let it return the parameter itself then"
            )
        if tensor.layout is not torch.strided:
            raise UnsupportedModelError(
                f"{name} of {type(model).__name__} is sparse, and sparse tensors are "
                "not sent: pass it as an input, or register it as a buffer with "
                "persistent=False"
            )
