"""Try a plan on the model itself: what does not hold is left out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.agreement import agree
from flwr_asyncdrop.submodel.narrow import narrow
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probe import Probe
from flwr_asyncdrop.submodel.tensors import tensors_of
from flwr_asyncdrop.submodel.types import Indices, Keep, State

_SMALL_SIZE = 1_000_000
_MOST_ROUNDS = 8


def find_faults(probe: Probe, plan: Plan) -> dict[int, str]:
    """Return which groups of `plan` do not hold, by their number, and why.

    On all groups at once, and on halves of them while they fail, a narrower model,
    whose units come in any order, has to run and to give what the full model gives
    when the other units are silenced, their weights being zero. Some half of the units
    is dropped, an odd number where that can be: heads or widths that only fit by
    coincidence do not pass.

    A small model may hide a fault behind units that are silent anyway: there, where
    it costs little, other inputs are tried too, and dropping only one unit.
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
        sound = [group for group in range(len(plan.groups)) if group not in faults]
        faults |= _Trial(tried, plan, state, generator, drops_one).faults(sound)
    return faults


class _Trial:
    """The model's tensors, and the plan that is tried on them."""

    def __init__(
        self,
        probe: Probe,
        plan: Plan,
        state: State,
        generator: torch.Generator,
        drops_one: bool,
    ) -> None:
        self._probe = probe
        self._plan = plan
        self._state = state
        self._generator = generator
        self._drops_one = drops_one

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
        together = self._fault(sound) if len(sound) > 1 else None
        if together is not None:  # sound halves that do not hold together
            first = set(groups[:middle])
            faults |= {group: together for group in sound if group not in first}
        return faults

    def _fault(self, groups: Sequence[int]) -> str | None:
        """Return what is wrong with dropping units of all `groups`, None if nothing."""
        order = self._order(groups)
        places = self._plan.indices(self._keep(groups))
        sources = _sources(self._plan, places, order)
        try:
            small = narrow(self._probe.model, self._plan.shapes_of(places))
            narrowed = self._run(small, _taken(self._state, sources))
        except Exception as error:  # whatever the model's own code raises
            line = str(error).strip().partition("\n")[0]
            return f"a narrower model does not run ({type(error).__name__}: {line})"
        silenced = self._run(self._probe.model, _silenced(self._state, sources))
        same = agree(narrowed, silenced, self._probe.tolerance)
        if (self._drops_one or not same) and not self._is_reorderable(order):
            return "its units are not interchangeable: reordering changes the output"
        if not same:
            return "a narrower model differs from the full one with units silenced"
        return None

    def _is_reorderable(self, order: Tensor) -> bool:
        reordered = _taken(self._state, _sources(self._plan, {}, order))
        model = self._probe.model
        return agree(
            self._run(model, reordered), self._run(model, {}), self._probe.tolerance
        )

    def _run(self, model: nn.Module, changed: State) -> list[Any]:
        """Return the output of `model` with the state's tensors, some of them changed.

        The tensors are lent, not copied; but for buffers, on which a model may write.
        """
        state = self._state | changed
        for name, tensor in tensors_of(model).items():
            mine = name not in self._plan.parameters and name not in changed
            tensor.data = state[name].clone() if mine else state[name]
        return self._probe.run(model)

    def _keep(self, groups: Sequence[int]) -> Keep:
        """Return a keep that drops some units, any, of each of `groups`."""
        keep = list(self._plan.full_keep())
        for group in groups:
            size = len(keep[group])
            shuffled = torch.randperm(size, generator=self._generator)
            count = size - 1 if self._drops_one else size // 2 | 1
            keep[group] = shuffled[:count].sort().values
        return tuple(keep)

    def _order(self, groups: Sequence[int]) -> Tensor:
        """Return an id for each id: the units of each of `groups` change places."""
        order = torch.arange(self._plan.num_units + 1)
        for group in groups:
            offset, size = self._plan.offsets[group], self._plan.groups[group].size
            cycle = offset + torch.randperm(size, generator=self._generator)
            order[cycle] = cycle.roll(1)  # so that none stays in its place
        return order


def _sources(plan: Plan, places: Indices, order: Tensor) -> Indices:
    """Return from which position each of the `places` takes its values.

    The place of a unit takes those of the unit that `order` gives for it. Of a unit
    with several positions on an axis the k-th takes the k-th. Dims without places
    keep all of theirs; they are absent if nothing moves there.
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
    """Return the tensors that `sources` names, made of the positions that it names."""
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
