"""Try a plan on the model itself: what does not hold is left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.experts import (
    dropped_experts,
    with_all_experts,
    without_experts,
)
from flwr_asyncdrop.submodel.narrow import narrow
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probe import Probe, first_line
from flwr_asyncdrop.submodel.types import Indices, Keep, State, tensors_of

T = TypeVar("T")

_SMALL_SIZE = 1_000_000
_MOST_ROUNDS = 8


def find_faults(probe: Probe, plan: Plan) -> dict[int, str]:
    """Return which groups of `plan` do not hold, by their number, and why.

    A narrower model, its units reordered, must run and give what the full model gives
    with the other units zeroed. It is tried on all groups, and on halves of those that
    fail. It keeps about half of the units, an odd number, so that no head or width
    fits by coincidence. In a small model silent units may hide a fault: other inputs
    are tried too, and dropping only one unit.
    """
    size = sum(tensor.numel() for tensor in probe.model.parameters())
    rounds = min(max(_SMALL_SIZE // max(size, 1), 1), _MOST_ROUNDS)
    generator = torch.Generator().manual_seed(0)
    tensors = tensors_of(probe.model)
    state = {name: tensor.detach() for name, tensor in tensors.items()}
    faults: dict[int, str] = {}
    for number in range(rounds):
        tried = probe.varied(generator) if number else probe
        drops_one = rounds > 1 and number % 2 == 0
        trial = _Trial(tried, plan, state, generator, drops_one)
        sound = [group for group in range(len(plan.groups)) if group not in faults]
        faults |= bisect(sound, trial.fault)
    return faults


def bisect(
    items: Sequence[T], fault: Callable[[Sequence[T]], str | None]
) -> dict[T, str]:
    """Return the items that fail, alone or together, and why `fault` says they do."""
    found = fault(items) if items else None
    if found is None:
        return {}
    if len(items) == 1:
        return {items[0]: found}
    middle = len(items) // 2
    faults = bisect(items[:middle], fault) | bisect(items[middle:], fault)
    sound = [item for item in items if item not in faults]
    together = fault(sound) if len(sound) > 1 else None
    if together is not None:  # sound halves that do not hold together
        first = set(items[:middle])
        faults |= {item: together for item in sound if item not in first}
    return faults


def agree(found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> bool:
    """Tell whether the leaves of two outputs are equal, but for rounding.

    `tolerance` is relative to the largest value of a floating-point tensor.
    """
    return len(found) == len(expected) and all(
        _close(one, other, tolerance)
        for one, other in zip(found, expected, strict=True)
    )


def _close(found: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return bool(found == expected)
    if found.shape != expected.shape or not found.is_floating_point():
        return torch.equal(found, expected)
    if not expected.numel():
        return True
    difference = (found - expected).abs().max()
    return bool(difference <= tolerance * expected.abs().max())


@dataclass(frozen=True)
class _Trial:
    probe: Probe
    plan: Plan
    state: State
    generator: torch.Generator
    drops_one: bool

    def fault(self, groups: Sequence[int]) -> str | None:
        """Return what is wrong with dropping units of all `groups`, if anything."""
        order = self._order(groups)
        places = self.plan.indices(self._keep(groups))
        sources = _sources(self.plan, places, order)
        try:
            small = narrow(self.probe.model, self.plan.shapes_of(places))
            narrowed = self._run(small, _taken(self.state, sources))
        except Exception as error:  # whatever the model's own code raises
            kind, line = type(error).__name__, first_line(error)
            return f"a narrower model does not run ({kind}: {line})"
        silenced = self._run_full(sources)
        same = agree(narrowed, silenced, self.probe.tolerance)
        if (self.drops_one or not same) and not self._is_reorderable(order):
            return "its units are not interchangeable: reordering changes the output"
        if not same:
            return "a narrower model differs from the full one with units silenced"
        return None

    def _run_full(self, kept: Indices) -> list[Any]:
        """Run the full model with other units zeroed, other experts out of reach."""
        silenced = _silenced(self.state, with_all_experts(self.plan, kept))
        with without_experts(self.probe.model, dropped_experts(self.plan, kept)):
            return self._run(self.probe.model, silenced)

    def _is_reorderable(self, order: Tensor) -> bool:
        reordered = _taken(self.state, _sources(self.plan, {}, order))
        model = self.probe.model
        return agree(
            self._run(model, reordered), self._run(model, {}), self.probe.tolerance
        )

    def _run(self, model: nn.Module, changed: State) -> list[Any]:
        """Return the output of `model` with the state's tensors, some of them changed.

        Buffers are copied, since a model may write on them.
        """
        state = self.state | changed
        for name, tensor in tensors_of(model).items():
            mine = name not in self.plan.parameters and name not in changed
            tensor.data = state[name].clone() if mine else state[name]
        return self.probe.run(model)

    def _keep(self, groups: Sequence[int]) -> Keep:
        keep = list(self.plan.full_keep())
        for group in groups:
            size = len(keep[group])
            shuffled = torch.randperm(size, generator=self.generator)
            count = size - 1 if self.drops_one else size // 2 | 1
            count = max(count, self.plan.groups[group].least)
            keep[group] = shuffled[:count].sort().values
        return tuple(keep)

    def _order(self, groups: Sequence[int]) -> Tensor:
        """Return an id for each id: the units of each of `groups` change places."""
        order = torch.arange(self.plan.num_units + 1)
        for group in groups:
            offset, size = self.plan.offsets[group], self.plan.groups[group].size
            cycle = offset + torch.randperm(size, generator=self.generator)
            order[cycle] = cycle.roll(1)  # so that none stays in its place
        return order


def _sources(plan: Plan, places: Indices, order: Tensor) -> Indices:
    """Return from which position each of the `places` takes its values.

    The k-th place of a unit takes the k-th of the unit that `order` gives for it. Dims
    without places keep all of theirs; they are absent if nothing moves there.
    """
    moved: dict[int, Tensor] = {}
    sources: Indices = {}
    for name, dims in plan.axes.items():
        for dim, units in dims.items():
            if id(units) not in moved:
                moved[id(units)] = _moved(plan, units, order)
            positions = moved[id(units)]
            here = places.get(name, {}).get(dim)
            if here is not None:
                positions = positions[here]
            elif torch.equal(positions, torch.arange(len(positions))):
                continue
            sources.setdefault(name, {})[dim] = positions
    return sources


def _moved(plan: Plan, units: Tensor, order: Tensor) -> Tensor:
    """Return from which position each one takes its values when nothing is dropped."""
    kept_last = torch.where(units < 0, plan.num_units, units)
    positions = torch.empty_like(units)
    places = order[kept_last].argsort(stable=True)
    positions[places] = kept_last.argsort(stable=True)
    return positions


def _taken(state: State, sources: Indices) -> State:
    taken: State = {}
    for name, dims in sources.items():
        taken[name] = state[name]
        for dim, positions in dims.items():
            taken[name] = taken[name].index_select(dim, positions)
    return taken


def _silenced(state: State, sources: Indices) -> State:
    """Return the same tensors, whole, with zeros at the positions not named."""
    silenced: State = {}
    for name, dims in sources.items():
        silenced[name] = state[name].clone()
        for dim, positions in dims.items():
            dropped = torch.ones(state[name].shape[dim], dtype=torch.bool)
            dropped[positions] = False
            silenced[name].index_fill_(dim, dropped.nonzero().squeeze(1), 0)
    return silenced
