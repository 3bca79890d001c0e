"""Try a plan on the model itself: what does not hold is left out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flwr_asyncdrop.readable import kind_and_line
from flwr_asyncdrop.submodel.narrowing.conventions import unclear_groups
from flwr_asyncdrop.submodel.narrowing.derived import estimated_groups
from flwr_asyncdrop.submodel.narrowing.experts import (
    dropped_experts,
    with_all_experts,
    without_experts,
)
from flwr_asyncdrop.submodel.narrowing.narrow import narrow
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probing.compare import agree, any_nan, are_still, shift_
from flwr_asyncdrop.submodel.probing.held import holding, silencing, taken
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.passes import Pass
from flwr_asyncdrop.submodel.probing.probe import Probe
from flwr_asyncdrop.submodel.probing.running_passes import is_large, run
from flwr_asyncdrop.submodel.types import Indices, Keep, State, tensors_of
from flwr_asyncdrop.submodel.verification.trial_counts import (
    counts_to_keep,
    even_part,
    levels_of,
    some_units,
)

T = TypeVar("T")

TINY = {torch.float64: 1e-100, torch.float32: 1e-15}
"""What silences a unit where zero would divide by zero: its square is not zero."""

_IN_ORDER = "its units are not interchangeable: reordering changes the output"
_STILL = (
    "cannot be verified, as no output follows the weights on the example inputs: pass "
    "inputs on which they do"
)
_UNSTEADY = (
    "cannot be verified, as the model gives something else each time: keep what it "
    "remembers between calls in a buffer, and the generator that it draws from in an "
    "attribute of a module"
)


def find_faults(probe: Probe, plan: Plan) -> dict[int, str]:
    """Return which groups of `plan` do not hold, by their number, and why.

    A narrower model, its units reordered, must run on every pass and give what the
    full model gives with the other units zeroed. It is tried on all groups, and on
    halves of those that fail. Of each group an odd number of units is kept, and in
    one round at least another number than in any other group, so that no head or width
    fits by coincidence; in another few units of every group, since code may ask how
    many there are. In a small model silent units may hide a fault: there it is tried to
    keep a single unit, too, an even number of them, and to drop only the first or the
    last. A model that remembers what it was given is called twice in a row.

    A narrower stream is another model: it must run, beside what else holds, and be the
    same in any order of its units.
    """
    calls = probe.calls_in_a_row()
    if not calls:
        return dict.fromkeys(range(len(plan.groups)), _UNSTEADY)
    generator = torch.Generator().manual_seed(0)
    tensors = tensors_of(probe.model)
    state = {name: tensor.detach() for name, tensor in tensors.items()}
    large = is_large(probe.model)
    few = [levels_of(group)[0] for group in plan.groups]
    least = [group.least for group in plan.groups]
    one_less = [max(group.size - 1, group.least) for group in plan.groups]
    even = list(map(even_part, plan.groups))
    faults = unclear_groups(probe.model, plan) | estimated_groups(probe.model, plan)
    rounds = [*counts_to_keep(plan.groups), few]
    if not large:
        rounds += [least, one_less, one_less, even]
    for number, counts in enumerate(rounds):
        passes = probe.passes
        if number:
            passes = passes[:1] if large else (*passes[:4], passes[-1])
        tried = replace(probe, passes=passes)
        # Once a round: a half of the groups that failed is tried with the same units.
        kept = [
            some_units(group.size, count, number, generator)
            for group, count in zip(plan.groups, counts, strict=True)
        ]
        orders = [torch.randperm(g.size, generator=generator) for g in plan.groups]
        trial = _Trial(
            *(tried, plan, state, kept, orders, calls),
            reorders=counts is one_less,
            looks_for_moves=number == 0,
        )
        sound = [group for group in range(len(plan.groups)) if group not in faults]
        streams = [group for group in sound if plan.groups[group].kind == "stream"]
        exact = [group for group in sound if group not in streams]
        why = trial.fault(exact) if exact else None
        if why is not None:
            # Cheap, and a model of many blocks may have as many groups that do not run.
            failing = bisect(exact, trial.failure)
            running = [n for n in exact if n not in failing]
            faults |= failing | bisect(running, trial.fault, "" if failing else why)
        beside = [group for group in exact if group not in faults]
        faults |= bisect(streams, partial(trial.fault, beside=beside))
    return faults


def bisect(
    items: Sequence[T], fault: Callable[[Sequence[T]], str | None], known: str = ""
) -> dict[T, str]:
    """Return the items that fail, alone or together, and why `fault` says they do.

    It is asked about all of them, unless the reason is `known`. What it has once said
    of items is not asked again: it may depend on more than them. Those that are left
    have passed together.
    """
    found = known or (fault(items) if items else None)
    if found is None:
        return {}
    if len(items) == 1:
        return {items[0]: found}
    middle = len(items) // 2
    faults = bisect(items[:middle], fault) | bisect(items[middle:], fault)
    sound = [item for item in items if item not in faults]
    together: str | None = found
    if faults:
        together = fault(sound) if len(sound) > 1 else None
    if together is not None:  # sound halves that do not hold together
        first = set(items[:middle])
        faults |= {item: together for item in sound if item not in first}
    return faults


@dataclass(frozen=True)
class _Trial:
    probe: Probe
    plan: Plan
    state: State
    kept: Sequence[Tensor]  # units of each group
    orders: Sequence[Tensor]  # all units of each, in another order
    calls: int  # in a row, of each pass
    reorders: bool  # whether it is tried to reorder the units without dropping any
    looks_for_moves: bool  # whether outputs have to follow the weights

    def failure(self, groups: Sequence[int]) -> str | None:
        """Return why the first pass does not run without units of all `groups`."""
        places = self.plan.indices(self._keep(groups))
        try:
            small = self._narrow(places)
            with holding(small, self.state | taken(self.state, places)):
                self._run(self.probe.passes[0], small)
        except Exception as error:  # whatever the model's own code raises
            return _does_not_run(error)
        return None

    def fault(self, groups: Sequence[int], beside: Sequence[int] = ()) -> str | None:
        """Return what is wrong with dropping units of all `groups`, if anything.

        Of those `beside` them units are dropped too.
        """
        groups = [*beside, *groups]
        order = self._order(groups)
        places = self.plan.indices(self._keep(groups))
        sources = _sources(self.plan, places, order)
        try:
            small = self._narrow(places)
            found, shifted = self._run_narrowed(small, taken(self.state, sources))
        except Exception as error:  # whatever the model's own code raises
            return _does_not_run(error)
        del small
        if any(self.plan.groups[group].kind == "stream" for group in groups):
            return self._fault_of_stream(order, found)
        zeroed = self._run_silenced(sources, 0.0)
        same = self._agree(found, zeroed, shifted)
        if not same and any_nan(zeroed) and not any_nan(found):
            # A unit may be scaled by its own length, which must not be 0 / 0.
            tiny = self._run_silenced(sources, TINY[self.probe.dtype])
            same = self._agree(found, tiny, shifted)
        if (self.reorders or not same) and not self._is_reorderable(order):
            return _IN_ORDER
        if not same:
            return "a narrower model differs from the full one with units silenced"
        # The units that were kept may be dead ones.
        if self.looks_for_moves and are_still(found, shifted) and self._is_still():
            return _STILL
        return None

    def _narrow(self, places: Indices) -> nn.Module:
        shapes = self.plan.shapes_of(places)
        return narrow(self.probe.model, shapes, make=torch.empty)

    def _run_silenced(self, sources: Indices, value: float) -> list[list[Any]]:
        with self._dropped(sources, value):
            return [self._run(way) for way in self.probe.passes]

    def _fault_of_stream(
        self, order: Tensor, found: Sequence[Sequence[Any]]
    ) -> str | None:
        """Return what is wrong with a narrower stream, whose outputs are its own."""
        if not self._is_reorderable(order):
            return _IN_ORDER
        for way, narrowed in zip(self.probe.passes, found, strict=True):
            if [_form(n) for n in narrowed] != [_form(n) for n in self._run(way)]:
                return "a narrower model has outputs of another shape, or not finite"
        return None

    @contextmanager
    def _dropped(self, kept: Indices, value: float) -> Iterator[None]:
        """Silence all other positions with `value`, of experts their own units only.

        Experts without positions in `kept` cannot be chosen.
        """
        model, plan = self.probe.model, self.plan
        with (
            silencing(model, with_all_experts(plan, kept), value),
            without_experts(model, dropped_experts(plan, kept)),
        ):
            yield

    def _is_reorderable(self, order: Tensor) -> bool:
        reordered = taken(self.state, _sources(self.plan, {}, order))
        expected = [self._run(way) for way in self.probe.passes]
        with holding(self.probe.model, self.state | reordered):
            found = [self._run(way) for way in self.probe.passes]
            shift_(reordered.values(), self.probe.dtype)
            shifted = [self._run(way) for way in self.probe.passes]
        return self._agree(found, expected, shifted)

    def _is_still(self) -> bool:
        """Whether no output of the full model follows the weights."""
        found = [self._run(way) for way in self.probe.passes]
        copies = {name: tensor.clone() for name, tensor in self.state.items()}
        shift_(copies.values(), self.probe.dtype)
        with holding(self.probe.model, copies):
            return are_still(found, [self._run(way) for way in self.probe.passes])

    def _run_narrowed(
        self, small: nn.Module, narrowed: State
    ) -> tuple[list[list[Any]], list[list[Any]]]:
        """Return what the small model gives, and gives with its own tensors shifted."""
        with holding(small, self.state | narrowed):
            found = [self._run(way, small) for way in self.probe.passes]
            shift_(narrowed.values(), self.probe.dtype)
            shifted = [self._run(way, small) for way in self.probe.passes]
        return found, shifted

    def _run(self, way: Pass, model: nn.Module | None = None) -> list[Any]:
        tried = self.probe.model if model is None else model
        with kept_state(tried, self.probe.written):
            return [leaf for _ in range(self.calls) for leaf in run(tried, way)]

    def _agree(
        self,
        found: Sequence[Sequence[Any]],
        expected: Sequence[Sequence[Any]],
        shifted: Sequence[Sequence[Any]],
    ) -> bool:
        passes = zip(found, expected, shifted, strict=True)
        return all(agree(*outputs, self.probe.dtype) for outputs in passes)

    def _keep(self, groups: Sequence[int]) -> Keep:
        keep = list(self.plan.full_keep())
        for group in groups:
            keep[group] = self.kept[group]
        return tuple(keep)

    def _order(self, groups: Sequence[int]) -> Tensor:
        """Return an id for each id: the units of each of `groups` change places."""
        order = torch.arange(self.plan.num_units + 1)
        for group in groups:
            cycle = self.plan.offsets[group] + self.orders[group]
            order[cycle] = cycle.roll(1)  # so that none stays in its place
        return order


def _does_not_run(error: Exception) -> str:
    return f"a narrower model does not run ({kind_and_line(error)})"


def _form(leaf: Any) -> Any:
    """Return the shape of a tensor, and where its values are finite if not all are."""
    if not isinstance(leaf, Tensor):
        return type(leaf)
    finite = leaf.isfinite()
    return leaf.shape, leaf.dtype, None if bool(finite.all()) else finite.tolist()


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
