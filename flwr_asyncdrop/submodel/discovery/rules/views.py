"""Operations that move positions: the same operation moves the labels."""

from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer, along, compact


def move(call: Call) -> Labels:
    """Label the outputs by applying the operation itself to the labels."""
    source, *_ = call.arguments
    others = {name: v for name, v in call.arguments.items() if name != source}
    moved: list[list[Layer]] = [[] for _ in call.outputs]
    for layer in call.operand(source).layers:
        alias = layer[...]  # some operations change the strides in place
        result = call.func(alias, **others)
        parts = [result] if isinstance(result, Tensor) else result
        for labels, part in zip(moved, parts, strict=True):
            labels.append(part)
    return moved


def expand(call: Call) -> Labels:
    """Move the labels; copies of an activation along a new dim get units of their own.

    Copies are interchangeable, like a padding mask's or a single key's for each head
    of attention.
    """
    source = call.operand("self")
    moved = move(call)
    if not source.from_input:
        return moved
    shape = call.outputs[0].shape
    missing = len(shape) - source.value.dim()
    repeated = [
        dim
        for dim, size in enumerate(shape)
        if size > 1 and (dim < missing or source.value.shape[dim - missing] == 1)
    ]
    copies = [along(call.space.copies(shape[dim]), shape, dim) for dim in repeated]
    return [[*moved[0], *copies]]


def shuffle(call: Call) -> Labels:
    """Shuffle channels as a grid, of which whole columns are kept."""
    groups = call.arguments["groups"]
    layers = []
    for layer in call.operand("self").layers:
        grid = layer.reshape(layer.shape[0], groups, -1, *layer.shape[2:])
        call.space.note_split(grid)
        layers.append(grid.transpose(1, 2).flatten(1, 2))
    return [layers]


def reshape(call: Call) -> Labels:
    """Reshape the labels; a split of their axis must keep a grid.

    Where two axes of units become one, only one of them can be followed: rather that of
    weights than of copies, then the outer one, or the first of a weight's own.
    """
    shape = call.outputs[0].shape
    layers: list[Layer] = []
    for before in _by_rank(call.space, call.operand("self")):
        layer = before.reshape(shape)
        axes = call.space.varying(layer)
        copied = call.operand("self").from_input and not call.space.has_weights(before)
        if copied and any(axes & call.space.varying(other) for other in layers):
            call.space.freeze(before, "repeated for each of other units in {op}")
            continue
        call.space.note_split(layer)
        layers.append(layer)
    return [layers]


def _by_rank(space: LabelSpace, operand: Operand) -> list[Layer]:
    def rank(layer: Layer) -> tuple[bool, int]:
        if not operand.from_input:
            return False, int(compact(layer).max())
        outermost = min(space.varying(layer), default=0)
        return not space.has_weights(layer), outermost

    return sorted(operand.layers, key=rank)


def copy(call: Call) -> Labels:
    """Keep the labels of a plain copy."""
    return [call.operand("self").layers]


def restride(call: Call) -> Labels:
    """Keep the labels where every element stays in its place.

    Pooling to one pixel ends so for tensors in channels-last order: only the strides
    along axes of one position change.
    """
    source = call.operand("self")
    shape, strides = call.arguments["size"], call.arguments["stride"]
    axes = zip(shape, strides, source.strides, strict=True)
    moved = any(new != old for size, new, old in axes if size > 1)
    resized = any(list(layer.shape) != list(shape) for layer in source.layers)
    if moved or resized or call.arguments["storage_offset"] is not None:
        raise ValueError("its elements change places")
    return [source.layers]


RULES: dict[str, Rule] = {
    "view _unsafe_view reshape _reshape_alias": reshape,
    "permute transpose transpose_ t t_ squeeze squeeze_ unsqueeze unsqueeze_": move,
    "roll flip unfold pixel_shuffle pixel_unshuffle": move,
    "expand repeat": expand,
    "channel_shuffle native_channel_shuffle": shuffle,
    "as_strided as_strided_": restride,
    "clone detach alias contiguous lift_fresh _to_copy": copy,
    "_conj conj_physical resolve_conj resolve_neg": copy,
}
