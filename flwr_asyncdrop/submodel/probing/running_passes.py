"""Run a model, and find the passes on which it runs."""

import warnings
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from flwr_asyncdrop.readable import first_line
from flwr_asyncdrop.submodel.probing.draws import EXTREMES, FixedDraws
from flwr_asyncdrop.submodel.probing.generators import same_random_state
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.nested import leaves
from flwr_asyncdrop.submodel.probing.passes import Pass, prepared, variations
from flwr_asyncdrop.submodel.probing.precision import own_precision
from flwr_asyncdrop.submodel.probing.seen import Seen
from flwr_asyncdrop.submodel.types import Example

_MANY = 2_000_000  # weights


def is_large(model: nn.Module) -> bool:
    """Tell whether runs of `model` are too costly for many of them."""
    return num_weights(model) > _MANY


def num_weights(model: nn.Module) -> int:
    """Return how many elements the parameters of `model` have."""
    return sum(tensor.numel() for tensor in model.parameters())


def run(model: nn.Module, way: Pass, draws: FixedDraws | None = None) -> list[Any]:
    """Return the leaves of what `model` gives on a pass; it may change its buffers.

    Those that are memory of the model are copied: it may have other values afterwards.
    """
    model.train(way.training)
    with ExitStack() as stack:
        stack.enter_context(same_random_state(model))
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        if way.watched:
            stack.enter_context(draws or way.draws())
            stack.enter_context(own_precision(model))
        # Models may write on what they are given.
        given = way.cast(Tensor.clone).example.run(model)
        own = {_memory(tensor) for tensor in (*model.parameters(), *model.buffers())}
        return [_copied(leaf, own) for leaf in leaves(given)]


def _copied(leaf: Any, own: Set[int | None]) -> Any:
    """Return a copy of a tensor that shows memory of its `own` model, else the leaf."""
    if not isinstance(leaf, Tensor) or _memory(leaf) not in own:
        return leaf
    return leaf.clone()


def _memory(tensor: Tensor) -> int | None:
    """Return which memory a tensor shows; None of a sparse one."""
    if tensor.layout is not torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)


class DoesNotTrainError(Exception):
    """The model runs, but on no pass in training mode."""


def find_passes(
    model: nn.Module, examples: Sequence[Example], dtype: torch.dtype, seen: Seen
) -> tuple[Pass, ...]:
    """Return passes that run: the examples, and variations of the first, in both modes.

    Raises what the model raises if an example runs in neither mode, and
    DoesNotTrainError.
    """
    generator = torch.Generator().manual_seed(0)
    found: list[Pass] = []
    for example in examples:
        kinds: list[Example] = []
        for kind in prepared(example, dtype, generator):
            kinds.append(kind)
            tried = [_tried(model, Pass(kind, mode), seen) for mode in (False, True)]
            failures = [failure for _, failure in tried]
            if not all(failures):
                break
        else:
            unwatched = [Pass(kind, training=False, watched=False) for kind in kinds]
            running = [k for k in unwatched if failure_of(model, k, seen) is None]
            if not running:
                raise next(failure for failure in failures if failure)
            found.append(running[0])
        found += [way for way, failure in tried if failure is None]
    if not found[0].watched:
        return tuple(found)
    varied = list(_varied(model, found[0].example, seen))
    if is_large(model) and len(examples) == 1 and varied and varied[0].training:
        found = found[:1]  # one in training mode will do
    found += varied
    trained = [way for way in found if way.training]
    if not trained:
        raise DoesNotTrainError(first_line(failures[1])) from failures[1]
    for training in (True, False):
        drawn = [way for way in seen.drawn if way.training is training]
        found += _at_extremes(model, drawn, seen)
    return tuple(found)


def _varied(model: nn.Module, example: Example, seen: Seen) -> Iterator[Pass]:
    """Yield variations that run, in training mode and in eval mode by turns.

    Not those that give no finite number, as the mean over ``x[:, 1:]`` of one position
    does: no unit shows in it.
    """
    rows = [len(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)]
    thorough = not is_large(model)
    vocabulary = min(rows, default=0)
    kinds = variations(example, vocabulary, thorough=thorough, grows=seen.foreign)
    training = True
    for alternatives in kinds:
        for varied in alternatives:
            modes = (training, not training)
            tried = (_tried(model, Pass(varied, mode), seen) for mode in modes)
            running = next(
                (way for way, why in tried if why is None and seen.shows(way)), None
            )
            if running is not None:
                yield running
                training = not running.training
                break


def _at_extremes(model: nn.Module, ways: Sequence[Pass], seen: Seen) -> Iterator[Pass]:
    """Yield the first of the passes with small and with large random numbers."""
    extremes = [replace(way, level=level) for way in ways[:1] for level in EXTREMES]
    yield from (way for way in extremes if failure_of(model, way, seen) is None)


def _tried(model: nn.Module, way: Pass, seen: Seen) -> tuple[Pass, Exception | None]:
    """Return a pass and what it raises: one with plain numbers if it needs them."""
    draws = way.draws()
    failure = failure_of(model, way, seen, draws)
    if failure is not None and draws.has_followed:
        plain = replace(way, follows=False)
        if failure_of(model, plain, seen) is None:
            return plain, None
    return way, failure


def failure_of(
    model: nn.Module,
    way: Pass,
    seen: Seen | None = None,
    draws: FixedDraws | None = None,
) -> Exception | None:
    """Return what a pass raises; if it raises nothing, add to `seen` what it shows."""
    draws, moving = draws or way.draws(), set[str]()
    try:
        with kept_state(model, moving=moving):
            outputs = run(model, way, draws)
    except Exception as error:  # whatever the model's own code raises
        return error
    if seen is not None:
        seen.foreign |= draws.runs_foreign
        seen.note(way, outputs)
        seen.moving |= moving
        if draws.uses_level:
            seen.drawn.append(way)
    return None
