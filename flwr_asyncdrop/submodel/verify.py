"""Try a plan on the model itself: what does not hold is left out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.narrow import narrow
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probe import Probe
from flwr_asyncdrop.submodel.tensors import tensors_of
from flwr_asyncdrop.submodel.transfer import extract, merge_
from flwr_asyncdrop.submodel.types import Keep, State

__all__ = ["find_faults"]

_SMALL_SIZE = 1_000_000
_MOST_ROUNDS = 8


def find_faults(probe: Probe, plan: Plan) -> dict[int, str]:
    """Return which groups of `plan` do not hold, by their number, and why.

    Three things are tried on all groups at once, and on halves of them while they
    fail: the output does not change (1) when the units of a group change places, and
    (2) a model that is narrower by one unit a group runs and (3) gives what the full
    model gives when that unit is silenced, its weights being zero.

    A small model may hide a fault behind units that are silent anyway: there, where
    it costs little, other inputs and other units are tried too.
    """
    size = sum(tensor.numel() for tensor in probe.model.parameters())
    rounds = min(max(_SMALL_SIZE // max(size, 1), 1), _MOST_ROUNDS)
    generator = torch.Generator().manual_seed(0)
    tensors = tensors_of(probe.model)
    state = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    faults: dict[int, str] = {}
    for number in range(rounds):
        tried = probe.varied(generator) if number else probe
        sound = [group for group in range(len(plan.groups)) if group not in faults]
        faults |= _Trial(tried, plan, state, generator).faults(sound)
    return faults


class _Trial:
    """The model's tensors and output, and the plan that is tried on them."""

    def __init__(
        self, probe: Probe, plan: Plan, state: State, generator: torch.Generator
    ) -> None:
        self._probe = probe
        self._plan = plan
        self._state = state
        self._generator = generator
        self._expected = self._run_with({})

    def faults(self, groups: Sequence[int]) -> dict[int, str]:
        """Return the groups among `groups` that fail, alone or with the others."""
        fault = self._fault(groups) if groups else None
        if fault is None:
            return {}
        if len(groups) == 1:
            return {groups[0]: fault}
        middle = len(groups) // 2
        faults = self.faults(groups[:middle]) | self.faults(groups[middle:])
        sound = [group for group in groups if group not in faults]
        together = self._fault(sound) if sound else None
        if together is not None:  # sound halves that do not hold together
            first = set(groups[:middle])
            faults |= {group: together for group in sound if group not in first}
        return faults

    def _fault(self, groups: Sequence[int]) -> str | None:
        """Return what is wrong with dropping units of all `groups`, None if nothing."""
        permuted = _permute(self._plan, self._state, self._order(groups))
        if not self._agree(self._run_with(permuted), self._expected):
            return "its units are not interchangeable: reordering changes the output"
        indices = self._plan.indices(self._keep(groups))
        sub = extract(self._state, indices)
        try:
            small = narrow(self._probe.model, self._plan.shapes_of(indices))
            small.load_state_dict(sub)
            narrowed = self._probe.run(small)
        except Exception as error:  # whatever the model's own code raises
            line = str(error).strip().partition("\n")[0]
            return f"a narrower model does not run ({type(error).__name__}: {line})"
        silenced = {name: torch.zeros_like(self._state[name]) for name in indices}
        merge_(silenced, {name: sub[name] for name in indices}, indices, 1.0)
        if not self._agree(narrowed, self._run_with(silenced)):
            return "a narrower model differs from the full one with units silenced"
        return None

    def _run_with(self, changed: State) -> list[Any]:
        self._probe.model.load_state_dict(self._state | changed)
        return self._probe.run()

    def _keep(self, groups: Sequence[int]) -> Keep:
        """Return a keep that drops one unit, any, of each of `groups`."""
        keep = list(self._plan.full_keep())
        for group in groups:
            size = len(keep[group])
            dropped = torch.randint(size, (), generator=self._generator)
            keep[group] = keep[group][keep[group] != dropped]
        return tuple(keep)

    def _order(self, groups: Sequence[int]) -> Tensor:
        """Return an id for each id: the units of each of `groups` change places."""
        order = torch.arange(self._plan.num_units + 1)
        for group in groups:
            offset, size = self._plan.offsets[group], self._plan.groups[group].size
            shuffled = torch.randperm(size, generator=self._generator)
            order[offset : offset + size] = offset + shuffled
        return order

    def _agree(self, found: list[Any], expected: list[Any]) -> bool:
        return len(found) == len(expected) and all(
            _close(one, other, self._probe.tolerance)
            for one, other in zip(found, expected, strict=True)
        )


def _permute(plan: Plan, state: State, order: Tensor) -> State:
    """Return the tensors in which units have moved to where `order` puts them.

    Of a unit with several positions on an axis the k-th moves to the k-th.
    """
    permuted: State = {}
    for name, dims in plan.axes.items():
        permuted[name] = state[name]
        for dim, units in dims.items():
            kept_last = torch.where(units < 0, plan.num_units, units)
            source = kept_last.argsort(stable=True)
            target = order[kept_last].argsort(stable=True)
            positions = torch.empty_like(source)
            positions[target] = source
            permuted[name] = permuted[name].index_select(dim, positions)
    return permuted


def _close(found: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return bool(found == expected)
    if found.shape != expected.shape or not found.is_floating_point():
        return torch.equal(found, expected)
    if not expected.numel():
        return True
    difference = (found - expected).abs().max()
    return bool(difference <= tolerance * expected.abs().max())
