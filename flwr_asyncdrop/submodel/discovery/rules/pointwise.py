"""Operations that combine tensors position by position, after broadcasting."""

from collections.abc import Sequence

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Operand, Rule
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer


def is_uniform(operand: Operand, dim: int) -> bool:
    """Whether a constant is the same all along `dim`, like an initial hidden state.

    Its size follows the module's widths, so it does not stand in the way of a drop.
    """
    value = operand.value
    if operand.layers or operand.from_input:
        return False
    return bool((value == value.narrow(dim, 0, 1)).all())


def unify(
    space: LabelSpace, operands: Sequence[Operand], shape: Sequence[int]
) -> list[Layer]:
    """Join the labels of operands that are broadcast together to `shape`.

    Units that meet positions which cannot be dropped along the same dim freeze; where
    they vary along another dim too, like the heads of attention, they join instead.
    """
    joined: list[Layer] = []
    kept = _Kept(space, operands, shape)
    for operand in operands:
        own: list[Layer] = []
        for layer in operand.layers:
            wide = layer.expand(tuple(shape))
            varying = space.varying(wide)
            # Never by its own operand, which has units along these dims.
            obstructed = {dim for dim in varying if kept.along(dim)}
            if obstructed and obstructed == varying:
                space.freeze(wide, "combined with positions always kept in {op}")
                continue
            if obstructed:
                wide = space.collapse(wide, obstructed).expand(tuple(shape))
                varying = varying - obstructed
            own.append(wide)
        joined += _paired(space, joined, own)
    return joined


def _paired(
    space: LabelSpace, known: Sequence[Layer], own: Sequence[Layer]
) -> list[Layer]:
    """Pair layers along the same dims; return those of `own` that are alone there."""
    alone, meeting, met = [], [], dict[int, Layer]()
    for layer in own:
        varying = space.varying(layer)
        partners = [k for k in known if space.varying(k) & varying]
        if not partners:
            alone.append(layer)
            continue
        meeting.append(layer)
        met.update((id(k), k) for k in partners)
    if meeting:
        space.pair(list(met.values()), meeting)
    return alone


class _Kept:
    """Which dims of a broadcast shape have positions that are always kept.

    The answers hold until units are joined or frozen: a stack of a thousand steps would
    ask a million times.
    """

    def __init__(
        self, space: LabelSpace, operands: Sequence[Operand], shape: Sequence[int]
    ) -> None:
        self._space, self._operands, self._dims = space, operands, len(shape)
        self._known: dict[int, bool] = {}
        self._changes = space.units.changes

    def along(self, dim: int) -> bool:
        """Whether an operand has undroppable positions along a dim of the shape."""
        if self._changes != self._space.units.changes:
            self._changes = self._space.units.changes
            self._known.clear()
        if dim not in self._known:
            self._known[dim] = any(self._has(each, dim) for each in self._operands)
        return self._known[dim]

    def _has(self, operand: Operand, dim: int) -> bool:
        own = dim - (self._dims - operand.value.dim())
        if own < 0 or operand.value.shape[own] == 1 or is_uniform(operand, own):
            return False
        return not any(own in self._space.varying(layer) for layer in operand.layers)


def elementwise(call: Call) -> Labels:
    """Join the labels of all tensor arguments."""
    layers = unify(call.space, list(call.tensors()), call.outputs[0].shape)
    return [layers for _ in call.outputs]


def add(call: Call) -> Labels:
    """Join as any pointwise operation; a sum of two branches makes a residual stream.

    Recurrent cells sum their branches too, but those units live in the cell.
    """
    meet = not call.in_cell and _branches_meet(call)
    outputs = elementwise(call)
    if meet:
        for layer in outputs[0]:
            ids = call.space.droppable(layer).numpy()
            call.space.units.mark(ids, "residual")
    return outputs


def _branches_meet(call: Call) -> bool:
    """Whether two activations that carry different units are added."""
    branches = [operand for operand in call.tensors() if operand.from_input]
    if len(branches) != 2:
        return False
    shape = call.outputs[0].shape
    return any(
        _are_different_units(call.space, left.expand(shape), right.expand(shape))
        for left in branches[0].layers
        for right in branches[1].layers
    )


def _are_different_units(space: LabelSpace, left: Layer, right: Layer) -> bool:
    """Whether both layers vary along a common dim and are not the same units."""
    if not space.varying(left) & space.varying(right):
        return False
    if not (space.has_weights(left) and space.has_weights(right)):
        return False
    return bool((space.canonical(left) != space.canonical(right)).any())


def overwrite(call: Call) -> Labels:
    """Write one tensor over another, whose values do not matter any more."""
    operands = [k for k in call.operands("self") if k.layers]
    operands += call.operands("src")
    return [unify(call.space, operands, call.outputs[0].shape)]


def first_only(call: Call) -> Labels:
    """Keep the labels of the first argument: the others are scratch or settings."""
    return [call.operand("self").layers for _ in call.outputs]


def constant(call: Call) -> Labels:
    """Give no labels to what does not depend on the values of its arguments."""
    return call.unlabelled()


RULES: dict[str, Rule] = {
    "add add_ sub sub_": add,
    "rsub hardswish hardswish_ _prelu_kernel masked_fill_": elementwise,
    "log_sigmoid_forward native_dropout bernoulli complex polar": elementwise,
    # PyTorch 2.6 does not tag these as pointwise.
    "leaky_relu leaky_relu_ elu_ celu_ selu_ hardtanh_ hardsigmoid_": elementwise,
    "ldexp ldexp_": elementwise,
    "copy_": overwrite,
    "rrelu_with_noise rrelu_with_noise_": first_only,
    "fake_quantize_per_tensor_affine_cachemask": first_only,
    "new_zeros new_ones new_full new_empty zeros_like ones_like empty_like": constant,
    "full_like zero_ fill_ sym_size _local_scalar_dense": constant,
    "rand_like randn_like randint_like bernoulli_ normal_ uniform_": constant,
    "exponential_ random_ log_normal_ cauchy_ geometric_": constant,
}
