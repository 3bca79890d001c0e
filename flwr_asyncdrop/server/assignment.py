"""Which part of the model a device trains, and what that costs."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import CapacityError, ShapeError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.masks import MaskContext, MaskPolicy, fit, unit_scores
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.server.compute_share import ComputeShare
from flwr_asyncdrop.server.extra_records import checked_extra
from flwr_asyncdrop.server.order import Part
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import (
    Indices,
    Keep,
    Plan,
    State,
    extract,
    silenced,
)
from flwr_asyncdrop.submodel.types import shapes_of

Value = TypeVar("Value")

logger = logging.getLogger("flwr.asyncdrop")


class Assignment:
    """Cuts out the part of the model that a device trains.

    Without a `plan` every device trains the full model (Alg. 1). Else the mask policy
    chooses the units that a submodel keeps (Alg. 2 and 3). With `masked`, dropped units
    are zeroed instead of cut out, for clients of any framework that must stay
    unchanged: this saves nothing, but only the kept coordinates are merged.
    """

    def __init__(
        self,
        plan: Plan | None = None,
        masks: MaskPolicy | None = None,
        compute: ComputeShare = lambda keep, shapes: 1.0,
        *,
        masked: bool = False,
    ) -> None:
        self.masks = masks
        self._plan = plan
        self._compute = compute
        self._masked = masked
        # Of small savings, once: copies share the list.
        self._said: list[str] = []

    def with_masks(self, masks: MaskPolicy | None) -> "Assignment":
        """Return a copy with another mask policy; both share the known costs."""
        other = copy(self)
        other.masks = masks
        return other

    def part(
        self,
        state: RunState,
        rank: int,
        num_ranks: int,
        *,
        device: int = 0,
        server_round: int = 1,
        progress: float | None = None,
        most_bytes: float = math.inf,
        extra: Mapping[str, State] | None = None,
    ) -> Part:
        """Return what a device trains.

        `progress` is the share of the run that is over, None if nobody knows. Units are
        left out until the tensors have `most_bytes`. The records of `extra` have the
        full model's shapes and are cut like it. CapacityError if nothing is small
        enough, ShapeError if the mask policy keeps units that the plan has not, and
        ConfigError if `extra` is none that can be sent.
        """
        extra = checked_extra(extra, state.arrays)
        names = {record: tuple(tensors) for record, tensors in extra.items()}
        plan = self._plan
        if plan is None or self.masks is None:
            _check_size(state, most_bytes)
            shapes = shapes_of(state.arrays)
            return Part(state.arrays, {}, shapes, extra=extra, extra_names=names)
        vectors = self.masks.score_vectors

        def distances(origin: State | None) -> Sequence[Tensor]:
            trained = _trained(plan, state)
            return unit_scores(trained, state.arrays, origin, vectors=vectors)

        context = MaskContext(
            groups=plan.groups,
            rank=rank,
            num_ranks=num_ranks,
            generator=torch_generator(state.seed, "mask", state.dispatched),
            device=device,
            round=server_round,
            compute_scores=partial(distances, state.initial),
            compute_norms=partial(distances, None),
            known_progress=progress,
        )
        keep, indices = self._chosen(plan, self.masks, context, state)
        if self._masked:
            _check_size(state, most_bytes)
        elif most_bytes < math.inf:
            keep = _fit(plan, keep, state, most_bytes)
            indices = plan.indices(keep)
        shapes = plan.shapes_of(indices)
        cut = silenced if self._masked else extract
        indices = _travelling(indices, state)
        return Part(
            arrays=cut(state.arrays, indices),
            indices=indices,
            shapes=_travelling(plan.shapes if self._masked else shapes, state),
            compute=1.0 if self._masked else self._compute(keep, shapes),
            masked=self._masked,
            kept=dict(zip(plan.groups, keep, strict=True)),
            extra={r: cut(each, only(indices, each)) for r, each in extra.items()},
            extra_names=names,
        )

    def first_cost(
        self,
        state: RunState,
        rank: int,
        num_ranks: int,
        sizes: Callable[[Mapping[str, tuple[int, ...]]], tuple[int, int]] | None = None,
        progress: float = 0.0,
    ) -> TaskCost:
        """Return what the next task asks of a device while no unit has moved yet.

        Nothing is cut out for it. With another `progress` it is what a task asks when
        so much of the run is over. `sizes` gives the bytes of tensors of some shapes,
        down and up; by default those of the tensors as they are.
        """
        plan = self._plan
        shapes = shapes_of(state.arrays)
        compute = 1.0
        if plan is not None and self.masks is not None and not self._masked:
            zeros = [torch.zeros(group.size) for group in plan.groups]
            context = MaskContext(
                groups=plan.groups,
                rank=rank,
                num_ranks=num_ranks,
                generator=torch_generator(state.seed, "mask", state.dispatched),
                compute_scores=lambda: zeros,
                compute_norms=lambda: zeros,
                known_progress=progress,
            )
            keep, indices = self._chosen(plan, self.masks, context, state)
            shapes = plan.shapes_of(indices)
            compute = self._compute(keep, shapes)
        sent = _travelling(shapes, state)
        if sizes is not None:
            return TaskCost(compute, *sizes(sent))
        size = _num_bytes(sent, state)
        return TaskCost(compute, size, size)

    def all_indices(self, part: Part) -> Indices:
        """Return the kept positions of a part, of frozen tensors as well."""
        if self._plan is None or not part.kept:
            return part.indices
        return self._plan.indices(tuple(part.kept[g] for g in self._plan.groups))

    def _chosen(
        self, plan: Plan, masks: MaskPolicy, context: MaskContext, state: RunState
    ) -> tuple[Keep, Indices]:
        """Return the units that the policy keeps, or all if that saves too little."""
        keep = masks.choose(context)
        try:
            indices = plan.indices(keep)
        except ShapeError as error:
            raise ShapeError(f"{type(masks).__name__}.choose: {error}") from error
        if self._masked or not masks.least_saving:
            return keep, indices
        left_out = 1 - sum(len(units) for units in keep) / plan.num_units
        shapes = plan.shapes_of(indices)
        size = _num_bytes(_travelling(shapes, state), state)
        whole = sum(tensor.nbytes for tensor in state.arrays.values())
        compute, num_bytes = 1 - self._compute(keep, shapes), 1 - size / whole
        if max(compute, num_bytes) >= masks.least_saving * left_out:
            return keep, indices
        if not self._said:
            self._said.append(
                f"the full model goes out where a submodel hardly saves anything: here "
                f"{compute:.1%} of compute and {num_bytes:.1%} of bytes without "
                f"{left_out:.1%} of the units (least_saving={masks.least_saving:g})"
            )
            logger.warning(self._said[0])
        keep = plan.full_keep()
        return keep, plan.indices(keep)


def only(indices: Indices, state: State) -> Indices:
    """Return the kept positions of these tensors alone."""
    return {name: dims for name, dims in indices.items() if name in state}


def _fit(plan: Plan, keep: Keep, state: RunState, most_bytes: float) -> Keep:
    def num_bytes(keep: Keep) -> float:
        return _num_bytes(plan.shapes_of(plan.indices(keep)), state)

    generator = torch_generator(state.seed, "fit", state.dispatched)
    least = [group.least for group in plan.groups]
    return fit(keep, num_bytes, most_bytes, generator, least)


def _num_bytes(shapes: Mapping[str, tuple[int, ...]], state: RunState) -> int:
    """Return the size of tensors of these shapes and the state's types.

    ShapeError if the model lacks one.
    """
    tensors = state.frozen.tensors | state.arrays
    if missing := sorted(shapes.keys() - tensors.keys()):
        raise ShapeError(
            f"the model's arrays lack {missing[0]!r}, which its plan has: start with "
            "the arrays of the model that was planned"
        )
    return sum(
        math.prod(shape) * tensors[name].element_size()
        for name, shape in shapes.items()
    )


def _travelling(by_name: Mapping[str, Value], state: RunState) -> dict[str, Value]:
    """Return the entries of the tensors that travel: the frozen ones do not."""
    frozen = state.frozen.tensors
    return {name: value for name, value in by_name.items() if name not in frozen}


def _trained(plan: Plan, state: RunState) -> Plan:
    """Return the plan with the parameters that train: others never move."""
    if not state.frozen.tensors:
        return plan
    return replace(plan, parameters=plan.parameters & state.arrays.keys())


def _check_size(state: RunState, most_bytes: float) -> None:
    if most_bytes == math.inf:
        return
    size = sum(tensor.nbytes for tensor in state.served.values())
    if size > most_bytes:
        raise CapacityError(
            f"the full model has {size:,} bytes, and {most_bytes:,.0f} is the most: "
            "choose an algorithm with submodels"
        )
