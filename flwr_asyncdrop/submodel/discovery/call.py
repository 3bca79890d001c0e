"""One traced operation as the rules see it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload

from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer

Labels: TypeAlias = list[list[Layer]]
"""The layers of each output of a call."""


@dataclass(frozen=True)
class Operand:
    """A tensor with its labels: none when nothing in it can be dropped."""

    value: Tensor
    layers: list[Layer] = field(default_factory=list)
    from_input: bool = False  # False: it depends on the model's own tensors alone
    strides: tuple[int, ...] = ()  # before the operation, which may change them
    silent: bool = False  # zero wherever it has a unit whose weights are zero
    numbers: Layer | None = None  # its values number these units

    def narrow(self, dim: int, layers: list[Layer]) -> "Operand":
        """Return the first position along `dim`, with other `layers`."""
        value = self.value.narrow(dim, 0, min(1, self.value.shape[dim]))
        return Operand(value, layers, self.from_input, silent=self.silent)

    def as_it_was(self) -> "Operand":
        """Keep the values of what is about to change, if they may all be the same."""
        if self.layers or self.from_input:
            return self
        return replace(self, value=self.value.clone())


@dataclass(frozen=True)
class Call:
    """An operation that has run, with what its rule needs to label the outputs."""

    func: OpOverload
    arguments: Mapping[str, Any]  # by their names in the schema, with the defaults
    outputs: tuple[Any, ...]
    space: LabelSpace
    known: Mapping[int, Operand]  # id() of a tensor argument -> its labels
    in_cell: bool  # inside a recurrent cell

    @property
    def is_loss(self) -> bool:
        """Whether it is one of torch's own losses."""
        name = self.func.overloadpacket.__name__
        loss = "loss" in name or "cross_entropy" in name
        return loss and self.func.namespace == "aten"

    @property
    def is_empty(self) -> bool:
        """Whether nothing comes out, as from an expert that no token chose."""
        tensors = [isinstance(k, Tensor) and not k.numel() for k in self.outputs]
        return bool(tensors) and all(tensors)

    @property
    def reads_values(self) -> bool:
        """Whether Python gets to see values."""
        return torch.Tag.data_dependent_output in self.func.tags

    def deciding_sizes(self) -> list[Tensor]:
        """Return the tensors whose values decide on the size of the output."""
        if self.func.overloadpacket is not torch.ops.aten.index:
            return [operand.value for operand in self.known.values()]
        masks = (torch.bool, torch.uint8)
        indices = self.arguments["indices"]
        return [k for k in indices if k is not None and k.dtype in masks]

    def operand(self, name: str) -> Operand:
        """Return the tensor argument `name` with its labels."""
        return self.known[id(self.arguments[name])]

    def operands(self, *names: str) -> list[Operand]:
        """Return those of the arguments `names` that are tensors."""
        values = (self.arguments.get(name) for name in names)
        return [self.known[id(value)] for value in values if isinstance(value, Tensor)]

    def unlabelled(self, start: int = 0) -> Labels:
        """Return empty labels for the outputs from number `start` on."""
        return [[] for _ in self.outputs[start:]]

    def tensors(self) -> Iterator[Operand]:
        """Yield every tensor argument, those within lists too."""
        for value in self.arguments.values():
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, Tensor):
                    yield self.known[id(item)]


Rule: TypeAlias = Callable[[Call], Labels]
"""Labels the outputs of a call, and joins or freezes units on the way. One that raises
freezes whatever goes into the call."""

Extension: TypeAlias = Callable[..., Labels]
"""A rule that leaves what it does not know to the rule `base`, its second argument."""
