"""From a module and example inputs to a plan that is still to be verified."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from flwr_asyncdrop.submodel.discovery.grouping import group_units
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, along
from flwr_asyncdrop.submodel.discovery.tracer import UnitTracer
from flwr_asyncdrop.submodel.discovery.unionfind import Ids
from flwr_asyncdrop.submodel.experts import UncheckedOneHot
from flwr_asyncdrop.submodel.nested import tensors_within
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.types import Example, owner_of, tensors_of


def discover(model: nn.Module, example: Example) -> Plan:
    """Trace `model`, in eval mode on the CPU; return the plan that follows.

    It is unverified: rules do not see sizes that the model's code hides.
    """
    space = LabelSpace()
    tracer = UnitTracer(space)
    ids = _label_tensors(model, space, tracer)
    for tensor in tensors_within([example.args, example.kwargs]):
        tracer.label(tensor, [], from_input=True)
    with tracer.watching_cells(model), UncheckedOneHot(), tracer:
        outputs = example.run(model)
    for tensor in tensors_within(outputs):
        tracer.close(tensor)
    space.settle_competitions(_stacks(model, ids))
    space.settle_splits()
    return group_units(model, ids, space.units)


def _stacks(model: nn.Module, ids: Mapping[str, list[Ids]]) -> list[Ids]:
    """Return the ids along the first dims of parameters that stack matrices."""
    return [
        ids[name][0]
        for name, tensor in tensors_of(model).items()
        if isinstance(tensor, nn.Parameter)
        and tensor.dim() > 2
        and not isinstance(model.get_submodule(owner_of(name)), nn.modules.conv._ConvNd)
    ]


def _label_tensors(
    model: nn.Module, space: LabelSpace, tracer: UnitTracer
) -> dict[str, list[Ids]]:
    """Give every position of every dim an id; tied tensors share theirs."""
    ids: dict[str, list[Ids]] = {}
    seen: dict[int, list[Ids]] = {}
    for name, tensor in tensors_of(model).items():
        if id(tensor) not in seen:
            seen[id(tensor)] = _label_tensor(tensor, space, tracer)
        ids[name] = seen[id(tensor)]
    return ids


def _label_tensor(tensor: Tensor, space: LabelSpace, tracer: UnitTracer) -> list[Ids]:
    if not tensor.is_floating_point():
        return [np.zeros(size, np.int64) for size in tensor.shape]
    vectors = [space.fresh(size) for size in tensor.shape]
    layers = [along(v, tensor.shape, dim) for dim, v in enumerate(vectors)]
    tracer.label(tensor, space.tidy(layers), from_input=False)
    return [vector.numpy() for vector in vectors]
