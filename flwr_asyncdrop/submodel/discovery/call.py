"""One traced operation as the rules see it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor
from torch._ops import OpOverload

from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer

Labels: TypeAlias = list[list[Layer]]
"""The layers of each output of a call."""


@dataclass(frozen=True)
class Operand:
    """A tensor with its labels.

    Attributes
    ----------
    value : Tensor
        The real tensor.
    layers : list of Layer
        Its labels; empty when nothing in it can be dropped.
    from_input : bool
        Whether it depends on the model's inputs (an activation) or on its tensors
        and constants alone.
    strides : tuple of int
        Those of the tensor before the operation, which may have changed them.
    """

    value: Tensor
    layers: list[Layer] = field(default_factory=list)
    from_input: bool = False
    strides: tuple[int, ...] = ()

    def narrow(self, dim: int, layers: list[Layer]) -> "Operand":
        """Return the first position along `dim`, with other `layers`."""
        value = self.value.narrow(dim, 0, min(1, self.value.shape[dim]))
        return Operand(value, layers, self.from_input)


@dataclass(frozen=True)
class Call:
    """An operation that has run, with what its rule needs to label the outputs.

    Attributes
    ----------
    func : OpOverload
        The operation.
    arguments : mapping of str to object
        Its arguments by their names in the schema, defaults included.
    outputs : tuple
        What it returned, a tuple even if it is one tensor.
    space : LabelSpace
        The labels' classes.
    known : mapping of int to Operand
        The tensor arguments with their labels, by their Python identity.
    in_cell : bool
        Whether it runs inside a recurrent cell.
    """

    func: OpOverload
    arguments: Mapping[str, Any]
    outputs: tuple[Any, ...]
    space: LabelSpace
    known: Mapping[int, Operand]
    in_cell: bool

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
