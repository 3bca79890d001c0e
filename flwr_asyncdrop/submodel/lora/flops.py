"""What a training step costs with some of the adapters' components left out."""

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.flops import FlopCounter
from flwr_asyncdrop.submodel.kernels import plain_kernels, taken_for
from flwr_asyncdrop.submodel.lora.copies import copy_adapters
from flwr_asyncdrop.submodel.lora.loading import load_lora
from flwr_asyncdrop.submodel.lora.plan import LoraPlan
from flwr_asyncdrop.submodel.lora.tensors import travelling
from flwr_asyncdrop.submodel.lora.trial import does_not_run
from flwr_asyncdrop.submodel.probing.kept_state import kept_state
from flwr_asyncdrop.submodel.probing.nested import tensors_within
from flwr_asyncdrop.submodel.probing.passes import mapped
from flwr_asyncdrop.submodel.types import Inputs, Shapes, examples_of


class LoraFlops:
    """Counts the operations of training steps of a model with adapters.

    Other than `step_flops` it runs backward, too: the base, which is frozen, has no
    gradients of its own, and nothing below the first adapter that is left has any. The
    model stays as it is.

    Parameters
    ----------
    plan : LoraPlan
        Of this model.
    model : Module
        What `lora_plan` was given.
    example_inputs : Tensor, tuple, mapping, or list of these
        The first of them counts.
    """

    @torch.inference_mode(False)
    def __init__(
        self, plan: LoraPlan, model: nn.Module, example_inputs: Inputs
    ) -> None:
        self._model = copy_adapters(model)
        self._pairs = plan.pairs
        device = next(self._model.parameters()).device
        example = examples_of(example_inputs)[0]
        self._example = mapped(example, lambda tensor: tensor.to(device))
        self._dtypes = {n: t.dtype for n, t in travelling(self._model).items()}

    def count(self, shapes: Shapes) -> int:
        """Return the FLOPs of a step with tensors of these shapes, as `flops`."""
        return sum(self.flops(shapes))

    @torch.inference_mode(False)  # nothing runs backward in it
    def flops(self, shapes: Shapes) -> list[int]:
        """Return the FLOPs of each operation of a step with tensors of these shapes.

        UnsupportedModelError if the model does not run on the example inputs.
        """
        zeros = {
            n: torch.zeros(shapes[n], dtype=kind) for n, kind in self._dtypes.items()
        }
        load_lora(self._model, zeros, pairs=self._pairs)
        counter = FlopCounter()
        kept = kept_state(self._model)
        quiet = taken_for(self._model, training=False)
        with kept, quiet, plain_kernels(), torch.enable_grad(), counter:
            given = mapped(self._example, Tensor.clone)  # none is of inference mode
            try:
                outputs = tensors_within(given.run(self._model))
            except Exception as error:  # whatever the model's own code raises
                raise does_not_run(self._model, error) from error
            losses = [out.float().sum() for out in outputs if out.requires_grad]
            if losses:
                torch.autograd.backward(losses)
        self._model.zero_grad()
        return counter.flops
