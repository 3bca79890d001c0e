"""Follow unit labels through every operation of one forward pass."""

from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from flwr_asyncdrop.submodel.discovery.aliases import Aliases, spread, written
from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import Condition, LabelSpace, Layer
from flwr_asyncdrop.submodel.discovery.rules import rule_for
from flwr_asyncdrop.submodel.discovery.rules.joining import concatenate
from flwr_asyncdrop.submodel.discovery.rules.pointwise import constant
from flwr_asyncdrop.submodel.discovery.rules.values import MOVES, pass_on
from flwr_asyncdrop.submodel.discovery.rules.views import expand
from flwr_asyncdrop.submodel.discovery.running import Running
from flwr_asyncdrop.submodel.discovery.silence import is_silent
from flwr_asyncdrop.submodel.dispatch import DispatchMode

_UNINITIALISED = ("empty", "empty_like", "new_empty", "empty_strided")

_NO_RULE = "used by {op}, for which there is no rule"
_LOSS = "goes into a loss, by {op}"
_STRANGER = (
    "used by way of a name outside of the model, as a global variable is, which does "
    "not name a copy of it"
)


# The ignores here: torch leaves these methods of its modes untyped.
class UnitTracer(DispatchMode):
    """A dispatch mode: operations run as usual, and their outputs get labels.

    An operation without a rule freezes the units that go into it.

    Parameters
    ----------
    space : LabelSpace
        The units; passes that share it add up.
    explores : bool
        Whether each truth value that is read or drawn is tried both ways. If not, it
        freezes what it may concern, as other values do.
    strangers : Mapping of int to Tensor
        By the ``id()`` of each tensor of the model that was copied, the copy's. Code
        that uses one does not know of the copy: units of the copy's stay whole.

    Attributes
    ----------
    running : Running
        The modules that are running, and what may have other values.
    """

    def __init__(
        self,
        space: LabelSpace,
        *,
        explores: bool = False,
        strangers: Mapping[int, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._space = space
        self._strangers = strangers or {}
        self._labels: MutableMapping[Tensor, tuple[list[Layer], bool]]
        self._labels = WeakTensorKeyDictionary()
        self._conditions: MutableMapping[Tensor, list[Condition]]
        self._conditions = WeakTensorKeyDictionary()
        self._silent: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()
        self._aliases = Aliases()
        self.running = Running(space, self._layers_of, explores=explores)

    def label(
        self,
        tensor: Tensor,
        layers: list[Layer],
        *,
        from_input: bool,
        silent: bool = False,
    ) -> None:
        """Give `tensor` its labels; `silent` is that of an operand."""
        self._labels[tensor] = (layers, from_input)
        self._silent[tensor] = silent
        self._aliases.note(tensor)
        if from_input or isinstance(tensor, nn.Parameter):
            self.running.note_variable(tensor)

    def _layers_of(self, tensor: Tensor) -> list[Layer]:
        return self._labels.get(tensor, ([], False))[0]

    def operand(self, tensor: Tensor) -> Operand:
        """Return `tensor` with the labels that it has now."""
        layers, from_input = self._labels.get(tensor, ([], False))
        canonical = [self._space.canonical(layer) for layer in layers]
        strides = tensor.stride() if tensor.layout is torch.strided else ()
        silent = self._silent.get(tensor, False)
        numbers = self._space.numbers.get(tensor)
        return Operand(tensor, canonical, from_input, strides, silent, numbers)

    def close(self, output: Tensor) -> None:
        """Freeze what `output`, a part of the model's output, shows or stems from."""
        for layer in self.operand(output).layers:
            self._space.freeze(layer, "part of the model's output")
        if output in self._space.numbers:
            numbered = self._space.numbers[output]
            self._space.freeze(numbered, "part of the model's output")
        for layer, reason in self._conditions.get(output, []):
            self._space.freeze(layer, reason)

    def operate(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run it, and give labels to what it returns."""
        arguments = {
            **_defaults(func),
            **dict(zip(_defaults(func), args, strict=False)),
            **kwargs,
        }
        tensors = [v for v in tree_leaves(arguments) if isinstance(v, Tensor)]
        known = {id(tensor): self.operand(tensor) for tensor in tensors}
        for stranger in self._strangers.keys() & known.keys():
            for layer in self.operand(self._strangers[stranger]).layers:
                self._space.freeze(layer, _STRANGER)
        for tensor in written(func, arguments):
            known[id(tensor)] = known[id(tensor)].as_it_was()
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__ in _UNINITIALISED:
            result.zero_()  # memory that says nothing about the model
        outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        self._space.operation = str(func.overloadpacket)
        call = Call(func, arguments, outputs, self._space, known, self.running.in_cell)
        if func.overloadpacket.__name__ not in MOVES and not call.is_empty:
            self._space.note_uses(layer for k in known.values() for layer in k.layers)
        self._follow(call)
        self._note_reads(call)
        return result

    def _follow(self, call: Call) -> None:
        """Label the outputs of a call that has run."""
        operands = call.known.values()
        rule = rule_for(call.func)
        numbered = any(operand.numbers is not None for operand in operands)
        labelled = rule in (expand, concatenate) or any(
            operand.layers for operand in operands
        )
        follows = (labelled or numbered) and not call.is_empty
        layers = self._apply(rule, call) if follows else call.unlabelled()
        pass_on(call)
        conditions = self._conditions_of(call)
        if call.reads_values:
            for layer, reason in conditions:  # where it goes nobody sees
                self._space.freeze(layer, reason)
        from_input = any(k.from_input for k in operands) and rule is not constant
        for output, labels in zip(call.outputs, layers, strict=True):
            if isinstance(output, Tensor):
                tidied = self._space.tidy(labels)
                silent = is_silent(call, tidied)
                self.label(output, tidied, from_input=from_input, silent=silent)
                self.running.see(tidied)
                if rule is not constant:
                    self.running.note_result(output, (k.value for k in operands))
                if conditions:
                    self._conditions[output] = conditions
        for tensor in written(call.func, call.arguments):
            self._spread(tensor)

    def _spread(self, changed: Tensor) -> None:
        """Label the tensors that share memory with one that an operation changed."""
        source = self.operand(changed)
        for alias in self._aliases.of(changed):
            other = self.operand(alias)
            layers = self._space.tidy(spread(self._space, source, other))
            self.label(
                alias,
                layers,
                from_input=source.from_input or other.from_input,
                silent=source.silent and (other.silent or not other.layers),
            )
            self.running.see(layers)
            self.running.note_result(alias, [changed])
            conditions = self._conditions.get(changed, [])
            if conditions:
                known = self._conditions.get(alias, [])
                self._conditions[alias] = [*known, *conditions]

    def _note_reads(self, call: Call) -> None:
        """Note values, or sizes that depend on values, that Python gets to see."""
        values = [operand.value for operand in call.known.values()]
        is_truth = bool(call.outputs) and isinstance(call.outputs[0], bool)
        if is_truth and self.running.explores(values):
            return
        if self.running.reads_safely:
            return
        if call.reads_values:
            self.running.note_read(values)
        elif torch.Tag.dynamic_output_shape in call.func.tags:
            self.running.note_read(call.deciding_sizes())

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
        reason = _LOSS if call.is_loss else _NO_RULE
        if rule is not None:
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
