"""Which coordinates a device trains, and what that costs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flwr_asyncdrop.masks import MaskPolicy, unit_scores
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.server.state import ServerState
from flwr_asyncdrop.submodel import (
    Indices,
    Plan,
    State,
    extract,
    narrow,
    step_flops,
)

__all__ = ["FullModels", "Part", "Submodels"]


@dataclass(frozen=True)
class Part:
    """The part of the global model that a task trains.

    Attributes
    ----------
    arrays : dict of str to Tensor
        Its tensors, really smaller.
    indices : dict of str to dict of int to Tensor
        Where they come from; empty for the full model.
    shapes : mapping of str to tuple of int
        Their shapes.
    compute : float
        FLOPs of one step over those of the full model.
    """

    arrays: State
    indices: Indices
    shapes: Mapping[str, tuple[int, ...]]
    compute: float


class FullModels:
    """Every device trains the full model (Alg. 1)."""

    def assign(self, state: ServerState, rank: int, num_ranks: int) -> Part:
        """Return the whole global model."""
        shapes = {name: tuple(t.shape) for name, t in state.arrays.items()}
        return Part(state.arrays, {}, shapes, compute=1.0)


class Submodels:
    """Every device trains the units that a mask policy leaves it (Alg. 2 and 3).

    Parameters
    ----------
    model : nn.Module
        The full model; narrowed once per set of widths, to count FLOPs.
    example_inputs : Tensor or tuple
        Inputs that the model runs on.
    plan : Plan
        Its units.
    policy : MaskPolicy
        Which of them to keep.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Tensor | tuple[object, ...],
        plan: Plan,
        policy: MaskPolicy,
    ) -> None:
        self._model = model
        self._example_inputs = example_inputs
        self._plan = plan
        self._policy = policy
        self._full_flops = step_flops(model, example_inputs)
        self._compute: dict[tuple[int, ...], float] = {}

    def assign(self, state: ServerState, rank: int, num_ranks: int) -> Part:
        """Return the submodel for a device of `rank`.

        Parameters
        ----------
        state : ServerState
            The state of the run; the number of orders so far seeds the mask.
        rank, num_ranks : int
            The device's place among the speed ranks, 0 the fastest.
        """
        scores = (
            unit_scores(self._plan, state.arrays, state.initial)
            if self._policy.needs_scores
            else None
        )
        generator = torch_generator(state.seed, "mask", state.dispatched)
        keep = self._policy.assign(
            self._plan.groups, scores, rank, num_ranks, generator
        )
        indices = self._plan.indices(keep)
        shapes = self._plan.shapes_of(indices)
        widths = tuple(len(units) for units in keep)
        return Part(
            arrays=extract(state.arrays, indices),
            indices=indices,
            shapes=shapes,
            compute=self._compute_share(widths, shapes),
        )

    def _compute_share(
        self, widths: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
    ) -> float:
        if widths not in self._compute:
            with torch.no_grad():
                model = narrow(self._model, shapes)
                flops = step_flops(model, self._example_inputs)
            self._compute[widths] = flops / self._full_flops
        return self._compute[widths]
