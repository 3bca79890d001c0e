"""From a module and the ways in which it runs to a plan, still to be verified."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from flwr_asyncdrop.submodel.discovery.grouping import group_units
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along
from flwr_asyncdrop.submodel.discovery.tracer import UnitTracer
from flwr_asyncdrop.submodel.discovery.unionfind import Ids
from flwr_asyncdrop.submodel.narrowing.experts import UncheckedOneHot
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probing.draws import MIDDLE
from flwr_asyncdrop.submodel.probing.generators import same_random_state
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.nested import tensors_within
from flwr_asyncdrop.submodel.probing.passes import Pass
from flwr_asyncdrop.submodel.probing.precision import own_precision
from flwr_asyncdrop.submodel.probing.probe import Probe
from flwr_asyncdrop.submodel.types import is_inexact, owner_of, tensors_of

_MOST_PATHS = 16
_MOST_PATHS_BY_LEVEL = 8  # passes of other levels take the most likely ones

_Truths = Mapping[int, bool]  # by their number in the pass


def discover(probe: Probe, *, streams: bool = False) -> tuple[Plan, tuple[Pass, ...]]:
    """Trace the probe on all its passes; return what follows, and the passes.

    Where the model reads a truth value from its data, both paths are traced: there are
    more passes then. The plan is unverified: rules do not see sizes that the model's
    code hides. With `streams` it has groups of kind "stream", too.
    """
    space = LabelSpace(streams=streams)
    discovery = _Discovery(probe, space, {}, {})
    discovery.label_tensors()
    passes = [path for way in probe.passes for path in discovery.explore(way)]
    discovery.space.settle_competitions(discovery.stacks())
    discovery.space.settle_cuts()
    discovery.space.settle_splits()
    plan = group_units(probe.model, discovery.ids, discovery.space)
    return plan, tuple(passes)


@dataclass(frozen=True)
class _Discovery:
    probe: Probe
    space: LabelSpace
    ids: dict[str, list[Ids]]  # per tensor and dim the unit of every position
    layers: dict[int, list[Layer]]  # id() of a tensor -> its labels

    @property
    def model(self) -> nn.Module:
        """The copy that runs."""
        return self.probe.model

    def label_tensors(self) -> None:
        """Give every position of every dim an id; tied tensors share theirs."""
        first: dict[int, str] = {}
        for name, tensor in tensors_of(self.model).items():
            other = first.setdefault(id(tensor), name)
            self.ids[name] = self.ids.get(other) or self._label(tensor)

    def _label(self, tensor: Tensor) -> list[Ids]:
        if not is_inexact(tensor):
            return [np.zeros(size, np.int64) for size in tensor.shape]
        vectors = [self.space.fresh(size) for size in tensor.shape]
        layers = [along(v, tensor.shape, dim) for dim, v in enumerate(vectors)]
        self.layers[id(tensor)] = self.space.tidy(layers)
        return [vector.numpy() for vector in vectors]

    def stacks(self) -> list[Ids]:
        """Return the units along the first dims of parameters that stack matrices."""
        convolution = nn.modules.conv._ConvNd
        return [
            self.ids[name][0]
            for name, tensor in tensors_of(self.model).items()
            if isinstance(tensor, nn.Parameter)
            and tensor.dim() > 2
            and not isinstance(self.model.get_submodule(owner_of(name)), convolution)
        ]

    def explore(self, way: Pass) -> Sequence[Pass]:
        """Trace a pass on every path that truth values, read or drawn, lead to.

        If they are too many, or one does not run, only on its own: what the others may
        concern stays whole. What follows from the level of the pass alone is what it is
        then. A path on which the model's code raises an error is none.
        """
        paths, several = self._paths(way, by_level=way.level == MIDDLE)
        if not paths and several:
            paths, _ = self._paths(way, by_level=False)
        if not paths:
            self._trace(way)
        return paths or [way]

    def _paths(self, way: Pass, *, by_level: bool) -> tuple[Sequence[Pass], bool]:
        """Trace a pass on every path; return none if not all can be.

        Also whether some follow from the level alone; without `by_level` nobody asks.
        """
        waiting, done, several = [way], list[Pass](), False
        while waiting:
            path = waiting.pop()
            try:
                turns, chances = self._trace(path, explores=True)
            except Exception as error:
                if path is way:
                    raise
                if _is_refusal(error):
                    continue
                return [], several  # these inputs do not fit it: it cannot be seen
            done.append(path)
            if by_level:
                turns, several = {**turns, **chances}, several or bool(chances)
            decided = max(path.outcomes, default=-1)
            waiting += [
                replace(path, outcomes={**path.outcomes, number: not value})
                for number, value in sorted(turns.items())
                if number > decided
            ]
            most = _MOST_PATHS_BY_LEVEL if several else _MOST_PATHS
            if len(done) + len(waiting) > most:
                return [], several
        return done, several

    def _trace(self, way: Pass, *, explores: bool = False) -> tuple[_Truths, _Truths]:
        """Return the truth values that may be others in another pass, by number.

        First those that may be for any reason, then those that follow from the level of
        the pass alone.
        """
        tensors, originals = tensors_of(self.model), self.probe.originals.items()
        strangers = {id(original): tensors[name] for name, original in originals}
        tracer = UnitTracer(self.space, explores=explores, strangers=strangers)
        for tensor in tensors.values():
            layers = self.layers.get(id(tensor), [])
            tracer.label(tensor, layers, from_input=False, silent=True)
        for name, buffer in self.model.named_buffers():
            if name in self.probe.moving:
                tracer.running.note_variable(buffer)
        example = way.cast(Tensor.clone).example
        for tensor in tensors_within([example.args, example.kwargs]):
            tracer.label(tensor, [], from_input=True)
        draws = way.draws(tracer.running)
        self.model.train(way.training)
        with (
            kept_state(self.model, self.probe.written),
            same_random_state(self.model),
            tracer.running.watching(self.model),
            UncheckedOneHot(),
            tracer,
            draws,
            own_precision(self.model),
        ):
            outputs = example.run(self.model)
        for tensor in tensors_within(outputs):
            tracer.close(tensor)
        running = tracer.running
        turns, chances = (
            {number: draws.truths[number] for number in numbers}
            for numbers in (running.branches, running.by_level)
        )
        return turns, chances


def _is_refusal(error: Exception) -> bool:
    """Whether the model's own code raised it, as for inputs that it does not take."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raiser = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    own = not raiser.startswith(("torch.", "flwr_asyncdrop."))
    kinds = (AssertionError, ValueError, NotImplementedError, RuntimeError)
    return own and isinstance(error, kinds)
