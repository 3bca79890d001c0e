"""The floating-point operations of a forward pass."""

from typing import Any

from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from flwr_asyncdrop.submodel.default_device import cpu_by_default, given_default
from flwr_asyncdrop.submodel.dispatch import DispatchMode
from flwr_asyncdrop.submodel.kernels import eval_mode, plain_kernels
from flwr_asyncdrop.submodel.narrowing.experts import tensor_operations
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.passes import mapped
from flwr_asyncdrop.submodel.types import Inputs, check_module, examples_of
from flwr_asyncdrop.submodel.verification.training import as_given


def step_flops(model: nn.Module, example_inputs: Inputs) -> int:
    """Return the floating-point operations of one forward pass, in eval mode.

    A multiplication and an addition count as two; only matrix products, convolutions
    and attention count, as in `torch.utils.flop_counter`. A training step costs about
    three times as much. Of several example inputs the first count, on the device of
    the model and in its precision. What the pass writes on buffers is put back.
    """
    return sum(forward_flops(model, example_inputs))


@cpu_by_default()
def forward_flops(model: nn.Module, example_inputs: Inputs) -> list[int]:
    """Return the FLOPs of each operation that `step_flops` adds up."""
    check_module(model)
    counter = FlopCounter()
    example = as_given(examples_of(example_inputs)[0], model)
    with (
        kept_state(model),
        eval_mode(model),
        tensor_operations(model),
        plain_kernels(),
        counter,
        given_default(),
    ):
        mapped(example, Tensor.clone).run(model)  # none is of inference mode
    return counter.flops


class FlopCounter(DispatchMode):
    """Notes torch's FLOP counts of operations, in `flops`.

    torch's own counter also follows modules, and fails where one is given a view of a
    parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops: list[int] = []

    def operate(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run it, and note its FLOPs."""
        result = func(*args, **kwargs)
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.flops.append(count(*args, **kwargs, out_val=result))
        return result
