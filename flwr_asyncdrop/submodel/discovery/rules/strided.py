"""Slices that take every n-th position, such as interleaved halves."""

from flwr_asyncdrop.submodel.discovery.call import Call, Extension, Labels, Rule
from flwr_asyncdrop.submodel.discovery.rules.views import move


def take_every(call: Call, base: Rule) -> Labels:
    """Tie neighbours together where slices deal them out, one to each slice."""
    step = call.arguments["step"]
    operand = call.operand("self")
    dim = call.arguments["dim"] % operand.value.dim()
    length = operand.value.shape[dim]
    even = length % step == 0 and call.outputs[0].shape[dim] == length // step
    layers = [layer for layer in operand.layers if dim in call.space.varying(layer)]
    if step == 1 or not even or not layers:
        return base(call)
    for layer in layers:
        first = layer[_every(step, 0, dim)]
        for start in range(1, step):
            call.space.join(first, layer[_every(step, start, dim)])
    return move(call)


def _every(step: int, start: int, dim: int) -> tuple[slice, ...]:
    return (*[slice(None)] * dim, slice(start, None, step))


EXTENSIONS: dict[str, Extension] = {"slice": take_every}
