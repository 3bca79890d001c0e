"""Try a plan of adapters on the model: without components, and with them zeroed."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.readable import kind_and_line
from flwr_asyncdrop.submodel.default_device import given_default
from flwr_asyncdrop.submodel.kernels import plain_kernels, taken_for
from flwr_asyncdrop.submodel.lora.copies import copy_adapters
from flwr_asyncdrop.submodel.lora.loading import load_lora
from flwr_asyncdrop.submodel.lora.pairs import Adapter, Pairs
from flwr_asyncdrop.submodel.lora.tensors import is_peft, lora_state, travelling
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probing.draws import FixedDraws
from flwr_asyncdrop.submodel.probing.generators import same_random_state
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.nested import tensors_within
from flwr_asyncdrop.submodel.probing.passes import mapped
from flwr_asyncdrop.submodel.transfer import extract, silenced
from flwr_asyncdrop.submodel.types import Example, Keep, State
from flwr_asyncdrop.submodel.verification.verify import bisect

# How far two outputs may be apart: of what the dropped components change, and of the
# output itself, in units of its rounding.
_FINE, _COARSE = (1e-3, 64.0), (0.1, 4.0)
_FINE_EPS = 1e-5
_MOST_KEPT = 2**28  # bytes of a model that may write on its base in training mode


def find_wrong(
    model: nn.Module, plan: Plan, pairs: Pairs | None, example: Example
) -> dict[str, str]:
    """Return which groups of the plan do not hold, by name, and why.

    A copy of the model, with random adapters, is run without some units of every
    group, and with these zeroed, in eval mode; if the adapters are its own, also in
    training mode if it is small and runs there. Inputs that are zero are noise instead,
    as they hide what the first layers do. UnsupportedModelError if it does not run at
    all, or if an adapter of the model's own is not used, so that nothing can be said of
    it.
    """
    with plain_kernels():
        trial = _Trial(model, plan, pairs, example)
        unused = [] if is_peft(model) else trial.unused()
        if unused:
            raise UnsupportedModelError(
                f"{', '.join(unused)}: the example inputs do not use them, so that "
                "nothing can be tried: pass inputs that do, of the model itself"
            )
        faults = bisect(range(len(plan.groups)), trial.fault)
    return {plan.groups[group].name: why for group, why in faults.items()}


def find_nonlinear(
    model: nn.Module,
    plan: Plan,
    adapters: Sequence[Adapter],
    pairs: Pairs | None,
    example: Example,
) -> tuple[str, ...]:
    """Return the names of the adapters of the model's own that are no product ``B A``.

    ``M A`` with ``B`` times the inverse of ``M`` has the same product, and has to give
    the same. It does not where something lies between the factors, such as a ReLU.
    """
    if is_peft(model):  # whose layers are products
        return ()
    with plain_kernels():
        trial = _Trial(model, plan, pairs, example)
        mixed = bisect(adapters, trial.fault_when_mixed)
    return tuple(adapter.name for adapter in mixed)


def does_not_run(model: nn.Module, error: Exception) -> UnsupportedModelError:
    """Return an error that says what a model raised on the example inputs."""
    return UnsupportedModelError(
        f"{type(model).__name__} does not run on the example inputs "
        f"({kind_and_line(error)}): pass those of a forward pass"
    )


class _Trial:
    def __init__(
        self, model: nn.Module, plan: Plan, pairs: Pairs | None, example: Example
    ) -> None:
        self._plan, self._pairs = plan, pairs
        tries_training = not is_peft(model) and _num_bytes(model) <= _MOST_KEPT
        self._model = copy_adapters(model)
        self._base = [n for n, p in model.named_parameters() if not p.requires_grad]
        device = next(self._model.parameters()).device
        self._example = mapped(example, lambda t: _noise_for_zeros(t).to(device))
        self._state = _random_adapters(lora_state(self._model), plan)
        self._eps = _rounding(self._model)
        self._full: dict[bool, list[Tensor]] = {}  # by whether it is in training mode
        try:
            self._full[False] = self._run(self._state)
        except Exception as error:  # whatever the model's own code raises
            raise does_not_run(model, error) from error
        if any(bool(output.isnan().any()) for output in self._full[False]):
            raise UnsupportedModelError(
                f"{type(model).__name__} gives NaN on the example inputs, with random "
                "adapters, so that nothing can be compared: pass others, or a model in "
                "float32"
            )
        if tries_training:
            with suppress(Exception):  # it may need targets then
                self._full[True] = self._run(self._state, training=True)

    def unused(self) -> list[str]:
        """Return the tensors with units that the outputs do not depend on."""
        with torch.enable_grad():
            outputs = self._run(self._state)
            generator = torch.Generator().manual_seed(1)
            sums = [
                (out * torch.randn(out.shape, generator=generator).to(out)).sum()
                for out in outputs
                if out.requires_grad
            ]
            if sums:
                torch.autograd.backward(sums)
        gradients = {n: t.grad for n, t in travelling(self._model).items()}
        self._model.zero_grad()
        return [
            name
            for name in self._plan.axes
            if (gradient := gradients[name]) is None or not gradient.any()
        ]

    def fault(self, groups: Sequence[int]) -> str | None:
        """Return why the model does not do without units of these groups."""
        for keep in self._keeps(groups):
            indices = self._plan.indices(keep)
            if not indices:  # groups of one unit, which always stays
                continue
            whole, part = silenced(self._state, indices), extract(self._state, indices)
            for training, full in self._full.items():
                expected = self._run(whole, training=training)
                try:
                    found = self._run(part, training=training)
                except Exception as error:  # whatever the model's own code raises
                    reason = kind_and_line(error)
                    return (
                        f"the model does not run without some of them ({reason}): "
                        "nothing but the two factors may have a value for each "
                        "component, as a bias of A has"
                    )
                if not self._agree(found, expected, full):
                    return (
                        "the model without some of them does not give what it gives "
                        "with these zeroed: keep the scaling, alpha / rank, in an "
                        "attribute, where it does not follow the shapes"
                    )
        return None

    def fault_when_mixed(self, adapters: Sequence[Adapter]) -> str | None:
        """Return why the components of these adapters cannot be mixed."""
        mixed, without = dict(self._state), dict(self._state)
        for adapter in adapters:
            a, b = self._state[adapter.a], self._state[adapter.b]
            mixed[adapter.a], mixed[adapter.b] = _mixed(a, b, adapter)
            without[adapter.b] = torch.zeros_like(b)
        found = self._run(mixed)
        if self._agree(found, self._full[False], self._run(without)):
            return None
        return "it is no product of two factors"

    def _keeps(self, groups: Sequence[int]) -> list[Keep]:
        """Return what to keep: about half of the units, then the last one alone."""
        half, last = list(self._plan.full_keep()), list(self._plan.full_keep())
        for group in groups:
            size = self._plan.groups[group].size
            half[group] = torch.arange(group % 2, size, 2) if size > 1 else half[group]
            last[group] = torch.arange(size - 1, size)
        return [tuple(half), tuple(last)]

    def _run(self, state: State, *, training: bool = False) -> list[Tensor]:
        load_lora(self._model, state, pairs=self._pairs)
        draws = FixedDraws() if training else nullcontext()  # dropout drops nothing
        with (
            kept_state(self._model, self._base if training else ()),
            taken_for(self._model, training=training),
            same_random_state(self._model),
            given_default(),
            draws,
        ):
            given = mapped(self._example, Tensor.clone)  # the model may write on it
            outputs = tensors_within(given.run(self._model))
        return [output for output in outputs if output.is_floating_point()]

    def _agree(
        self,
        found: Sequence[Tensor],
        expected: Sequence[Tensor],
        full: Sequence[Tensor],
    ) -> bool:
        if [f.shape for f in found] != [e.shape for e in expected]:
            return False
        for one, other, whole in zip(found, expected, full, strict=True):
            finite = other.isfinite()
            if not torch.equal(one[~finite], other[~finite]):  # such as masked logits
                return False
            one, other, whole = one[finite], other[finite], whole[finite]
            eps = max(self._eps, torch.finfo(one.dtype).eps)
            of_change, of_output = _FINE if eps < _FINE_EPS else _COARSE
            allowed = of_change * _largest((whole - other)[whole.isfinite()])
            allowed += of_output * eps * _largest(other)
            if not _largest(one - other) <= allowed:
                return False
        return True


def _random_adapters(state: State, plan: Plan) -> State:
    """Replace what can be dropped by noise: a new adapter's ``B`` is zero."""
    generator = torch.Generator().manual_seed(0)
    drawn = dict(state)
    for name in plan.axes:
        tensor = state[name]
        noise = torch.randn(tensor.shape, generator=generator)
        width = max(tensor.numel() // max(max(tensor.shape), 1), 1)
        drawn[name] = (noise / width**0.5).to(tensor.device, tensor.dtype)
    return {name: tensor.clone() for name, tensor in drawn.items()}


def _mixed(a: Tensor, b: Tensor, adapter: Adapter) -> tuple[Tensor, Tensor]:
    """Return other factors of the same product, of other signs and lengths."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(adapter.rank, adapter.rank, generator=generator).double()
    turn = torch.linalg.qr(noise).Q
    rows, columns = (
        a.double().movedim(adapter.a_dim, 0),
        b.double().movedim(adapter.b_dim, 0),
    )
    # Rows times -2 Q and columns times its inverse, -Q' / 2.
    turn = turn.to(a.device)
    rows = -2 * torch.tensordot(turn, rows, 1)
    columns = -torch.tensordot(turn, columns, 1) / 2
    return rows.movedim(0, adapter.a_dim).to(a), columns.movedim(0, adapter.b_dim).to(b)


def _noise_for_zeros(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.any():
        return tensor
    generator = torch.Generator().manual_seed(2)
    # From 0 to 1: pixels, times and shares are never negative.
    return torch.rand(tensor.shape, generator=generator).to(tensor)


def _rounding(model: nn.Module) -> float:
    """Return the relative rounding of the coarsest weights; packed ones are coarse."""
    kinds = {parameter.dtype for parameter in model.parameters()}
    floats = [kind if kind.is_floating_point else torch.bfloat16 for kind in kinds]
    return max(torch.finfo(kind).eps for kind in floats)


def _num_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _largest(tensor: Tensor) -> float:
    return float(tensor.float().abs().max()) if tensor.numel() else 0.0
