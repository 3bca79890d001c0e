"""Follow unit labels through every operation of one forward pass."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import Condition, LabelSpace, Layer
from flwr_asyncdrop.submodel.discovery.rules import rule_for
from flwr_asyncdrop.submodel.discovery.rules.pointwise import constant
from flwr_asyncdrop.submodel.discovery.rules.routing import pass_on
from flwr_asyncdrop.submodel.discovery.rules.views import expand

_CELLS = (nn.RNNBase, nn.RNNCellBase)

_NO_RULE = "used by {op}, for which there is no rule"
_DATA_DEPENDENT = (
    "used after a Python value was read from the data: other inputs may take another "
    "path through the model"
)


# The ignores here: torch leaves these methods of its modes untyped.
class UnitTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """A dispatch mode: operations run as usual, and their outputs get labels.

    An operation without a rule freezes the units that go into it.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler, for a second, only to keep it out of here.
        return False

    def __init__(self, space: LabelSpace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._space = space
        self._labels: MutableMapping[Tensor, tuple[list[Layer], bool]]
        self._labels = WeakTensorKeyDictionary()
        self._conditions: MutableMapping[Tensor, list[Condition]]
        self._conditions = WeakTensorKeyDictionary()
        self._cell_depth = 0
        self._data_was_read = False

    def label(self, tensor: Tensor, layers: list[Layer], *, from_input: bool) -> None:
        """Give `tensor` its labels."""
        self._labels[tensor] = (layers, from_input)

    def operand(self, tensor: Tensor) -> Operand:
        """Return `tensor` with the labels that it has now."""
        layers, from_input = self._labels.get(tensor, ([], False))
        canonical = [self._space.canonical(layer) for layer in layers]
        strides = tensor.stride() if tensor.layout is torch.strided else ()
        numbers = self._space.numbers.get(tensor)
        return Operand(tensor, canonical, from_input, strides, numbers)

    def close(self, output: Tensor) -> None:
        """Freeze what `output`, a part of the model's output, shows or stems from."""
        for layer in self.operand(output).layers:
            self._space.freeze(layer, "part of the model's output")
        if output in self._space.numbers:
            numbered = self._space.numbers[output]
            self._space.freeze(numbered, "part of the model's output")
        for layer, reason in self._conditions.get(output, []):
            self._space.freeze(layer, reason)

    @contextmanager
    def watching_cells(self, model: nn.Module) -> Iterator[None]:
        """Note, by hooks on `model`, when recurrent cells are running."""
        cells = [module for module in model.modules() if isinstance(module, _CELLS)]
        hooks = [cell.register_forward_pre_hook(self._enter_cell) for cell in cells]
        hooks += [cell.register_forward_hook(self._leave_cell) for cell in cells]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter_cell(self, *_: Any) -> None:
        self._cell_depth += 1

    def _leave_cell(self, *_: Any) -> None:
        self._cell_depth -= 1

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments = {
            **_defaults(func),
            **dict(zip(_defaults(func), args, strict=False)),
            **(kwargs or {}),
        }
        tensors = [v for v in tree_leaves(arguments) if isinstance(v, Tensor)]
        known = {id(tensor): self.operand(tensor) for tensor in tensors}
        result = func(*args, **(kwargs or {}))
        outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        self._space.operation = str(func.overloadpacket)
        in_cell = self._cell_depth > 0
        self._follow(Call(func, arguments, outputs, self._space, known, in_cell))
        return result

    def _follow(self, call: Call) -> None:
        """Label the outputs of a call that has run."""
        operands = call.known.values()
        rule = rule_for(call.func)
        numbered = any(operand.numbers is not None for operand in operands)
        labelled = rule is expand or any(operand.layers for operand in operands)
        follows = labelled or numbered
        layers = self._apply(rule, call) if follows else call.unlabelled()
        pass_on(call)
        conditions = self._conditions_of(call)
        if call.func.overloadpacket is torch.ops.aten._local_scalar_dense:
            self._data_was_read |= any(k.from_input for k in operands)
            for layer, reason in conditions:  # where it goes nobody sees
                self._space.freeze(layer, reason)
        from_input = any(k.from_input for k in operands) and rule is not constant
        for output, labels in zip(call.outputs, layers, strict=True):
            if isinstance(output, Tensor):
                self.label(output, self._space.tidy(labels), from_input=from_input)
                if conditions:
                    self._conditions[output] = conditions

    def _conditions_of(self, call: Call) -> list[Condition]:
        """Return what freezes if the outputs are used: old conditions and new ones."""
        known = [
            condition
            for operand in call.known.values()
            for condition in self._conditions.get(operand.value, [])
        ]
        fresh, self._space.conditions = self._space.conditions, []
        return list({id(layer): (layer, why) for layer, why in known + fresh}.values())

    def _apply(self, rule: Rule | None, call: Call) -> Labels:
        """Return what the rule says, or freeze the operands if it cannot say."""
        reason = _NO_RULE
        if self._data_was_read:
            reason = _DATA_DEPENDENT
        elif rule is not None:
            try:
                return rule(call)
            except Exception as error:  # a rule that does not fit costs units only
                reason = f"used by {{op}} in a way that its rule cannot follow: {error}"
        for operand in call.known.values():
            numbers = [] if operand.numbers is None else [operand.numbers]
            for layer in [*operand.layers, *numbers]:
                self._space.freeze(layer, reason)
        return call.unlabelled()


@cache
def _defaults(func: OpOverload) -> dict[str, Any]:
    return {entry.name: entry.default_value for entry in func._schema.arguments}
