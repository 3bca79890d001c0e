"""Operations that move positions: the same operation moves the labels."""

from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Rule
from flwr_asyncdrop.submodel.discovery.labels import Layer

__all__ = ["RULES", "move"]


def move(call: Call) -> list[list[Layer]]:
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


def reshape(call: Call) -> list[list[Layer]]:
    """Reshape the labels; a split of their axis must keep a grid."""
    shape = call.outputs[0].shape
    layers = [layer.reshape(shape) for layer in call.operand("self").layers]
    for layer in layers:
        call.space.note_split(layer)
    return [layers]


def copy(call: Call) -> list[list[Layer]]:
    """Keep the labels of a plain copy."""
    return [call.operand("self").layers]


RULES: dict[str, Rule] = {
    "view _unsafe_view reshape _reshape_alias": reshape,
    "permute transpose transpose_ t t_ squeeze squeeze_ unsqueeze unsqueeze_": move,
    "expand roll flip repeat unfold pixel_shuffle": move,
    "clone detach alias contiguous lift_fresh _to_copy": copy,
}
