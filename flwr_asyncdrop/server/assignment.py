"""Which coordinates a device trains, and what that costs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor, nn

from flwr_asyncdrop.exceptions import CapacityError
from flwr_asyncdrop.masks import MaskPolicy, fit, unit_scores
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import (
    Indices,
    Keep,
    Plan,
    State,
    UnitGroup,
    extract,
    narrow,
    silenced,
    step_flops,
)

ExampleInputs = Tensor | tuple[object, ...]
"""What a module runs on: one tensor, or its positional arguments."""

ComputeShare = Callable[[Keep, Mapping[str, tuple[int, ...]]], float]
"""From a submodel's units and shapes to its compute over that of the full model."""

DurationRule = Literal["flops", "paper"]
"""What compute is measured in: FLOPs, or units as the paper has it."""


@dataclass(frozen=True)
class Part:
    """The part of the global model that a task trains.

    Attributes
    ----------
    arrays : dict of str to Tensor
        The tensors to send: really smaller, or full-size if `masked`.
    indices : dict of str to dict of int to Tensor
        Where they come from; empty for the full model.
    shapes : mapping of str to tuple of int
        The shapes of `arrays`.
    compute : float
        FLOPs of one step over those of the full model.
    masked : bool
        Whether the dropped units are zeroed instead of cut out.
    kept : mapping of UnitGroup to Tensor
        The unit numbers of each group that it trains; empty for the full model.
    """

    arrays: State
    indices: Indices
    shapes: Mapping[str, tuple[int, ...]]
    compute: float
    masked: bool = False
    kept: Mapping[UnitGroup, Tensor] = field(default_factory=dict)


class Assignment(Protocol):
    """Says which part of the model a device trains."""

    def assign(
        self,
        state: RunState,
        rank: int,
        num_ranks: int,
        most_bytes: float = math.inf,
    ) -> Part:
        """Return the part for a device of `rank` among `num_ranks`.

        Raises
        ------
        CapacityError
            If none is as small as `most_bytes`.
        """


class FullModels:
    """Every device trains the full model (Alg. 1)."""

    def assign(
        self,
        state: RunState,
        rank: int,
        num_ranks: int,
        most_bytes: float = math.inf,
    ) -> Part:
        """Return the whole global model, if that is no more than `most_bytes`."""
        _check_size(state, most_bytes)
        shapes = {name: tuple(t.shape) for name, t in state.arrays.items()}
        return Part(state.arrays, {}, shapes, compute=1.0)


class Submodels:
    """Every device trains the units that a mask policy leaves it (Alg. 2 and 3).

    Parameters
    ----------
    plan : Plan
        The units of the model.
    policy : MaskPolicy
        Which of them to keep.
    compute : callable
        Returns the compute of a step of the model with the given units and shapes,
        over that of the full model; called once per set of shapes.
    """

    def __init__(self, plan: Plan, policy: MaskPolicy, compute: ComputeShare) -> None:
        self._plan = plan
        self._policy = policy
        self._compute = compute
        self._known: dict[tuple[tuple[int, ...], ...], float] = {}

    def assign(
        self,
        state: RunState,
        rank: int,
        num_ranks: int,
        most_bytes: float = math.inf,
    ) -> Part:
        """Return the submodel for a device of `rank`.

        Parameters
        ----------
        state : RunState
            The state of the run; the number of orders so far seeds the mask.
        rank, num_ranks : int
            The device's place among the speed ranks, 0 the fastest.
        most_bytes : float
            Size that it may have; more units are left out if that takes it.

        Raises
        ------
        CapacityError
            If the smallest submodel is larger than that.
        """
        keep = _choose(self._policy, self._plan, state, rank, num_ranks)
        if most_bytes < math.inf:
            keep = self._fit(keep, state, most_bytes)
        indices = self._plan.indices(keep)
        shapes = self._plan.shapes_of(indices)
        sizes = tuple(shapes.values())
        if sizes not in self._known:
            self._known[sizes] = self._compute(keep, shapes)
        arrays = extract(state.arrays, indices)
        kept = dict(zip(self._plan.groups, keep, strict=True))
        return Part(arrays, indices, shapes, self._known[sizes], kept=kept)

    def _fit(self, keep: Keep, state: RunState, most_bytes: float) -> Keep:
        widths = {name: t.element_size() for name, t in state.arrays.items()}

        def num_bytes(keep: Keep) -> float:
            shapes = self._plan.shapes_of(self._plan.indices(keep))
            return sum(math.prod(shape) * widths[n] for n, shape in shapes.items())

        generator = torch_generator(state.seed, "fit", state.dispatched)
        return fit(keep, num_bytes, most_bytes, generator)


class MaskedModels:
    """Every device gets the full model with the dropped units zeroed.

    For clients that must stay as they are, of any framework: nothing is saved, but
    only the kept coordinates are merged, as with `Submodels`.

    Parameters
    ----------
    plan : Plan
        The units of the model.
    policy : MaskPolicy
        Which of them to keep.
    """

    def __init__(self, plan: Plan, policy: MaskPolicy) -> None:
        self._plan = plan
        self._policy = policy

    def assign(
        self,
        state: RunState,
        rank: int,
        num_ranks: int,
        most_bytes: float = math.inf,
    ) -> Part:
        """Return the masked model for a device of `rank`; see `Submodels.assign`.

        It is as large as the full model, whatever it leaves out.
        """
        _check_size(state, most_bytes)
        keep = _choose(self._policy, self._plan, state, rank, num_ranks)
        indices = self._plan.indices(keep)
        arrays = silenced(state.arrays, indices)
        return Part(
            arrays,
            indices,
            self._plan.shapes,
            compute=1.0,
            masked=True,
            kept=dict(zip(self._plan.groups, keep, strict=True)),
        )


def compute_share(
    plan: Plan,
    model: nn.Module | None,
    example_inputs: ExampleInputs | None,
    rule: DurationRule = "flops",
) -> ComputeShare:
    """Return how to compare a submodel's compute with that of the full model.

    By FLOPs where there is a module to count them on. Else by the number of weights,
    which is the same for fully connected layers and all that is known. The rule
    ``"paper"`` takes ``1 - drop rate`` instead, as the paper's simulation does: the
    share of the units that are kept.
    """
    if rule == "paper":
        return lambda keep, _: sum(len(units) for units in keep) / plan.num_units
    if model is None or example_inputs is None:
        elements = _elements(plan.shapes)
        return lambda _, shapes: _elements(shapes) / elements
    flops = step_flops(model, example_inputs)
    return lambda _, shapes: step_flops(narrow(model, shapes), example_inputs) / flops


def _check_size(state: RunState, most_bytes: float) -> None:
    """Raise CapacityError if the full model is more than `most_bytes`."""
    if most_bytes == math.inf:
        return
    size = sum(tensor.nbytes for tensor in state.arrays.values())
    if size > most_bytes:
        raise CapacityError(
            f"the full model has {size:,} bytes, and {most_bytes:,.0f} is the most: "
            "choose an algorithm with submodels"
        )


def _choose(
    policy: MaskPolicy, plan: Plan, state: RunState, rank: int, num_ranks: int
) -> Keep:
    scores = (
        unit_scores(plan, state.arrays, state.initial) if policy.needs_scores else None
    )
    generator = torch_generator(state.seed, "mask", state.dispatched)
    return policy.assign(plan.groups, scores, rank, num_ranks, generator)


def _elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
