"""Which modules are running, and where another pass may take another path."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.weak import WeakTensorKeyDictionary

from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer
from flwr_asyncdrop.submodel.discovery.readers import Readers
from flwr_asyncdrop.submodel.probing.drawn import Watch
from flwr_asyncdrop.submodel.probing.generators import own_generators, states_of
from flwr_asyncdrop.submodel.probing.nested import leaves, tensors_within

_CELLS = (nn.RNNBase, nn.RNNCellBase)
_OTHER_PATH = (
    "used where a Python value was read from the data, or drawn at random: other "
    "inputs may take another path through the model"
)


class _Varies(IntEnum):
    """Why a tensor may have other values in another pass; the largest reason counts."""

    BY_LEVEL = 0
    """It is drawn, and passes of several levels are tried."""
    DRAWN = 1
    DATA = 2
    """It follows from inputs, weights, or buffers that change."""


@dataclass
class _Frame:
    """A module that is running: the units seen in its own code.

    A module that has ended does the same whenever it is called, so what is made and
    used up inside it is safe. Code that goes on after a value was read is not, nor is
    code that has drawn a number.
    """

    seen: dict[int, Layer] = field(default_factory=dict)
    has_read: bool = False
    has_drawn: bool = False
    only_counts: bool = False  # reads how many passes there were, for all units alike
    in_cell: bool = False  # in torch's own recurrent layers


class Running(Watch):
    """The modules that are running, and the values on which their paths may depend.

    Units that their code handles freeze once it has read such a value, or has drawn a
    number.

    Parameters
    ----------
    space : LabelSpace
        The units.
    layers_of : callable
        Returns the labels of a tensor.
    explores : bool
        Whether truth values are tried both ways, so that they freeze nothing.

    Attributes
    ----------
    branches : list of int
        The numbers of the truth values, among all of the pass, that depend on inputs,
        weights or buffers that change, or are drawn.
    by_level : list of int
        Those of truth values that follow from the level of the pass alone.
    """

    def __init__(
        self,
        space: LabelSpace,
        layers_of: Callable[[Tensor], Sequence[Layer]],
        *,
        explores: bool,
    ) -> None:
        self._space = space
        self._layers_of = layers_of
        self._explores = explores
        self._truths = 0
        self.branches: list[int] = []
        self.by_level: list[int] = []
        self._variable: MutableMapping[Tensor, _Varies] = WeakTensorKeyDictionary()
        self._modules: list[nn.Module] = []
        self._frames = [_Frame()]
        self._generators: list[Any] = []  # of the model's own
        self._states: list[Any] = []

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Note, by hooks on `model`, which modules are running."""
        hooks = []
        self._modules = list(model.modules())
        self._generators = own_generators(model)
        self._states = states_of(self._generators)
        for module in self._modules:
            hooks += [
                module.register_forward_pre_hook(self._enter, with_kwargs=True),
                module.register_forward_hook(self._leave),
            ]
        try:
            with Readers(self.note_read):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def in_cell(self) -> bool:
        """Whether one of torch's own recurrent layers is running."""
        return self._frames[-1].in_cell

    @property
    def reads_safely(self) -> bool:
        """Whether what is running reads lengths or counts alone."""
        return self.in_cell or self._frames[-1].only_counts

    def begin(self) -> None:
        """Look for draws from now on: those of other threads have come to an end."""
        self._states = states_of(self._generators)

    def note_variable(self, tensor: Tensor) -> None:
        """Note that `tensor` may have other values in another pass."""
        self._variable[tensor] = _Varies.DATA

    def note_drawn(self, tensor: Tensor, *, by_level: bool = False) -> None:
        """Note that `tensor` has been drawn at random."""
        found = _Varies.BY_LEVEL if by_level else _Varies.DRAWN
        self._variable[tensor] = max(found, self._variable.get(tensor, found))

    def note_result(self, result: Tensor, sources: Iterable[Tensor]) -> None:
        """Note that `result` follows from `sources`, as well as from what it was."""
        known = self._reasons([*sources, result])
        if known:
            self._variable[result] = max(known)

    def explores(self, tensors: Sequence[Tensor]) -> bool:
        """Tell whether a truth value of `tensors` is tried both ways; count it."""
        varies = max(self._reasons(tensors), default=None)
        self._count_truth(varies)
        return self._explores or varies is _Varies.BY_LEVEL

    def note_choice(self, *, by_level: bool = False) -> None:
        """Note that Python sees a truth value of numbers that it has drawn."""
        self._count_truth(_Varies.BY_LEVEL if by_level else _Varies.DRAWN)
        if not (self._explores or by_level):
            self.note_number()

    def _count_truth(self, varies: _Varies | None) -> None:
        if varies is not None:
            numbers = self.by_level if varies is _Varies.BY_LEVEL else self.branches
            numbers.append(self._truths)
        self._truths += 1

    def _reasons(self, tensors: Iterable[Tensor]) -> list[_Varies]:
        return [self._variable[t] for t in tensors if t in self._variable]

    def note_read(self, tensors: Sequence[Tensor]) -> None:
        """Note that Python sees values of `tensors`, on which its path may depend."""
        found = self._reasons(tensors)
        if _Varies.DATA in found:
            for frame in self._frames:
                frame.has_read = True
            self._freeze_seen(self._frames)
        elif found:
            self.note_number()

    def see(self, layers: Sequence[Layer]) -> None:
        """Note that the module that is running now handles these units itself."""
        frame = self._frames[-1]
        for layer in layers:
            if frame.has_read or frame.has_drawn:
                self._space.freeze(layer, _OTHER_PATH)
            else:
                frame.seen[id(layer)] = layer

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._look_for_draws()
        caller = self._frames[-1]
        # What a caller that has read the data tells a module in plain values, within
        # objects too, may follow from what it read; so may numbers, if it has drawn.
        plain = [v for v in leaves([args, kwargs]) if isinstance(v, int | float | str)]
        told = caller.has_read and bool(plain)
        told |= caller.has_drawn and any(type(value) is not bool for value in plain)
        counts = isinstance(module, _BatchNorm)
        in_cell = caller.in_cell or isinstance(module, _CELLS)
        self._frames.append(_Frame(has_read=told, only_counts=counts, in_cell=in_cell))

    def _leave(self, _: nn.Module, __: Any, outputs: Any) -> None:
        self._look_for_draws()
        left = self._frames.pop()
        if left.has_drawn and any(isinstance(v, int | float) for v in leaves(outputs)):
            self.note_number()
        for tensor in tensors_within(outputs):
            self.see(self._layers_of(tensor))

    def draw(self, function: Callable[[], Any]) -> Any:
        """Return what `function` draws: nothing that `_look_for_draws` finds."""
        self._look_for_draws()
        try:
            return function()
        finally:
            self._states = states_of(self._generators)

    def _look_for_draws(self) -> None:
        """Note if the module that is running has drawn what nobody follows."""
        before, self._states = self._states, states_of(self._generators)
        if self._states != before:
            self.note_number()

    def note_number(self) -> None:
        """Note that the code of the module that is running has a number of chance.

        Those that have called it get it only if it is returned.
        """
        self._frames[-1].has_drawn = True
        self._freeze_seen(self._frames[-1:])

    def _freeze_seen(self, frames: Sequence[_Frame]) -> None:
        """Freeze what the code of modules handles, or may get from attributes."""
        for frame in frames:
            for layer in frame.seen.values():
                self._space.freeze(layer, _OTHER_PATH)
            frame.seen.clear()
        for kept in tensors_within([_own_attributes(m) for m in self._modules]):
            for layer in self._layers_of(kept):
                self._space.freeze(layer, _OTHER_PATH)


def _own_attributes(module: nn.Module) -> list[Any]:
    """Return what a module keeps beside its state, for its next call perhaps."""
    state = ("_parameters", "_buffers")
    return [value for name, value in vars(module).items() if name not in state]
