"""Narrow a module in place: the same modules and parameters, with other widths.

An optimizer that was built before, or a second name for the model, stays valid. The
module remembers what it was like at full size, so it can be loaded again with any
other submodel, or with the full model.
"""

import copy
import logging
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel.narrowing.copies import copy_module, copying
from flwr_asyncdrop.submodel.narrowing.derived import refresh, without_values
from flwr_asyncdrop.submodel.narrowing.narrow import adapt, blank_copy
from flwr_asyncdrop.submodel.narrowing.scaling import (
    add_scale,
    remove_scales,
    scales_of,
)
from flwr_asyncdrop.submodel.types import (
    Shapes,
    State,
    check_initialised,
    shapes_of,
    tensors_of,
)

logger = logging.getLogger("flwr.asyncdrop")

_MEMORY = "_asyncdrop_full_size"
_ABSENT = object()
# What a module is made of, and its hooks: `adapt` sets none of these anew.
_STRUCTURE = ("_parameters", "_buffers", "_modules", _MEMORY)


def load_in_place(model: nn.Module, state: State, *, scale: bool = True) -> nn.Module:
    """Make `model` as narrow as the arrays that arrived, holding them; return it.

    Parameters are the same objects, on the same devices, without gradients where their
    shape has changed; hooks, modes and other attributes stay. See `load_submodel`.

    Raises
    ------
    ShapeError
        If the arrays are not a submodel of `model`, or if it cannot be narrowed in
        place; it has not changed then.
    UnsupportedModelError
        If lazy layers of `model` have not run yet, or if it cannot be copied.
    """
    check_initialised(model)
    # What is made in inference mode never trains, and changes nowhere else.
    made_in_it = any(tensor.is_inference() for tensor in tensors_of(model).values())
    with torch.inference_mode(torch.is_inference_mode_enabled() and made_in_it):
        _load(model, state, scale)
    return model


def _load(model: nn.Module, state: State, scale: bool) -> None:
    sent = {name: array for name, array in state.items() if isinstance(array, Tensor)}
    shapes, memory = shapes_of(sent), _memory_of(model)
    if memory is not None or shapes != shapes_of(tensors_of(model)):
        memory = memory or _FullSize(_without_weights(model))
        narrowed, skipped = blank_copy(memory.module, shapes, torch.empty)
        check_separate(model, shapes)
        before = [_attributes(module) for module in narrowed.modules()]
        adapt(narrowed, memory.module, skipped, scale=scale)
        memory.undo(model)
        memory.apply(model, narrowed, before)
        memory.shapes = shapes
        model.__dict__[_MEMORY] = memory
        resize_(tensors_of(model), shapes)
    # What is no tensor is not sent: the versions of modules, and their extra state.
    complete = model.state_dict()
    complete.update(sent)
    model.load_state_dict(complete, strict=True)
    for module in model.modules():
        refresh(module)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


@dataclass(frozen=True)
class _Write:
    """An attribute that was set, of the module at this place in ``modules()``."""

    place: int
    name: str
    value: Any
    old: Any


@dataclass
class _FullSize:
    """What a module was like at full size, and what has been set in it since.

    It is kept in the module, so that copies of the module have it as well.
    """

    module: nn.Module  # its parameters have shapes, and no values
    shapes: Shapes = field(default_factory=dict)  # of the module as it is now
    writes: list[_Write] = field(default_factory=list)
    classes: dict[int, type[nn.Module]] = field(default_factory=dict)

    def undo(self, model: nn.Module) -> None:
        """Take back what was set; a value that is another one by now stays."""
        modules = list(model.modules())
        for write in reversed(self.writes):
            attributes = vars(modules[write.place])
            if not _is_same(attributes.get(write.name, _ABSENT), write.value):
                continue
            if write.old is _ABSENT:
                del attributes[write.name]
            else:
                attributes[write.name] = write.old
        for place, kind in self.classes.items():
            modules[place].__class__ = kind
        for module in modules:
            remove_scales(module)
        self.writes, self.classes = [], {}

    def apply(
        self, model: nn.Module, narrowed: nn.Module, before: list[dict[str, Any]]
    ) -> None:
        """Set what was set in `narrowed` since its attributes were `before`."""
        pairs = zip(model.modules(), narrowed.modules(), before, strict=True)
        for place, (mine, other, old) in enumerate(pairs):
            if type(mine) is not type(other):
                self.classes[place] = type(mine)
                mine.__class__ = type(other)
            for name, value in _attributes(other).items():
                if _is_same(value, old.get(name, _ABSENT)):
                    continue
                attributes = vars(mine)
                write = _Write(place, name, value, attributes.get(name, _ABSENT))
                self.writes.append(write)
                attributes[name] = value
            for scale in scales_of(other).values():
                add_scale(mine, scale)


def _memory_of(model: nn.Module) -> _FullSize | None:
    """Return what the module remembers; ShapeError if it has been rebuilt since."""
    memory = vars(model).get(_MEMORY)
    if memory is None or memory.shapes == shapes_of(tensors_of(model)):
        found: _FullSize | None = memory
        return found
    if memory.shapes == shapes_of(tensors_of(memory.module)):
        return None
    raise ShapeError(
        f"layers of this {type(model).__name__} were replaced after load_submodel had "
        "narrowed it: load the full model first, or build it anew for each task"
    )


def _without_weights(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters have shapes, and no values."""
    memo: dict[int, Any] = {
        id(tensor): nn.Parameter(
            torch.empty_like(tensor, device="meta"), requires_grad=tensor.requires_grad
        )
        for tensor in tensors_of(model).values()
        if isinstance(tensor, nn.Parameter)
    }
    with copying(model):
        copied = copy_module(model, memo)
    for module in copied.modules():
        without_values(module)
    return copied


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return what `adapt` may set; containers are copied, as it may change them."""
    return {
        name: copy.copy(value) if isinstance(value, list | dict | set) else value
        for name, value in vars(module).items()
        if name not in _STRUCTURE
        and "_hooks" not in name
        # Derived from parameters: computed anew when those are loaded.
        and not isinstance(value, Tensor)
    }


def _is_same(value: Any, old: Any) -> bool:
    """Whether two attributes are equal numbers or texts, or hold the same objects."""
    if type(value) is not type(old):
        return False
    if isinstance(value, dict):
        same_keys = list(value) == list(old)
        return same_keys and all(item is old[name] for name, item in value.items())
    if isinstance(value, list):
        same_length = len(value) == len(old)
        return same_length and all(map(operator.is_, value, old))
    if isinstance(value, set | tuple | int | float | str):
        return bool(value == old)
    return value is old


def check_separate(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ShapeError if tensors that are to be narrowed share memory with others."""
    tensors = tensors_of(model)
    for name, other in overlapping(tensors):
        if any(tuple(tensors[n].shape) != shapes[n] for n in (name, other)):
            raise ShapeError(
                f"{name} and {other} share memory, and cannot be narrowed in place: "
                "tie the parameter itself, or load with "
                "flwr_asyncdrop.submodel.load_submodel, which makes a new model"
            )


def overlapping(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yield the names of different tensors that share memory, each in some pair."""
    distinct = {id(tensor): name for name, tensor in tensors.items()}
    farthest, last = 0, ""
    spans = sorted((*_span(tensors[name]), name) for name in distinct.values())
    for start, end, name in spans:
        if start < farthest:
            yield last, name
        if end > farthest:
            farthest, last = end, name


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return where the memory of a tensor begins and ends."""
    if tensor.numel() == 0 or tensor.is_sparse or tensor.is_meta:
        return 0, 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


@torch.no_grad()
def resize_(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Give every tensor its shape, and leave its values open."""
    _watch_optimizers()
    _RESIZED.times += 1
    for name, tensor in tensors.items():
        narrows = tuple(tensor.shape) != shapes[name]
        if isinstance(tensor, nn.Parameter) and (
            narrows or tensor in _RESIZED.parameters
        ):
            _RESIZED.parameters[tensor] = _RESIZED.times
        if not narrows:
            continue
        fresh = torch.empty(shapes[name], dtype=tensor.dtype, device=tensor.device)
        tensor.grad = None
        # Another dtype in between: autograd then forgets the shape, too.
        between = torch.float16 if tensor.dtype != torch.float16 else torch.float32
        tensor.data = torch.empty(0, dtype=between, device=tensor.device)
        tensor.data = fresh


@dataclass
class _Resized:
    """How many loads narrowed something, and which was the last of each parameter."""

    times: int = 0
    parameters: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    # What `times` was when an optimizer was looked at.
    seen: WeakKeyDictionary[Optimizer, int] = field(default_factory=WeakKeyDictionary)


_RESIZED = _Resized()


@cache
def _watch_optimizers() -> None:
    """Check, before each step, that an optimizer's state fits what was narrowed."""
    register_optimizer_step_pre_hook(_check_optimizer)


def _check_optimizer(optimizer: Optimizer, *_: Any) -> None:
    seen = _RESIZED.seen.get(optimizer, 0)
    if seen == _RESIZED.times:
        return
    kind, is_old = type(optimizer).__name__, False
    for parameter, state in optimizer.state.items():
        if parameter not in _RESIZED.parameters or not isinstance(state, dict):
            continue
        if _RESIZED.parameters[parameter] <= seen:  # another model's have changed since
            continue
        tensors = {
            name: value
            for name, value in state.items()
            if isinstance(value, Tensor) and value.dim()
        }
        if tensors and state.get("step") != 0:  # Adagrad has zeros before its first
            is_old = True
        alike = {
            name: tuple(value.shape)
            for name, value in tensors.items()
            if value.dim() == parameter.dim()
        }
        # Adafactor has a number for each row, and one for each column.
        together = tuple(map(max, zip(*alike.values(), strict=True)))
        if alike and together != parameter.shape:
            name, shape = next(iter(alike.items()))
            raise ShapeError(
                f"the {kind} optimizer has {name!r} of shape {shape} from an earlier "
                "task, for a parameter that load_submodel made "
                f"{tuple(parameter.shape)}: build the optimizer anew for each task, or "
                "call optimizer.state.clear()"
            )
    if is_old:
        logger.warning(
            "the %s optimizer has state from an earlier task, which may have had other "
            "units: build it anew for each task, or call optimizer.state.clear()",
            kind,
        )
    _RESIZED.seen[optimizer] = _RESIZED.times
