"""Where units are certain to be zero once their weights are.

A tensor is *silent* if all that it has of a unit is zero when the unit's weights are
zeroed. Sums and norms over such units stay as they are when units are dropped.
"""

from collections.abc import Sequence

from torch import Tensor

from flwr_asyncdrop.submodel.discovery.call import Call, Operand
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace, Layer

# Operations that keep a zero, or move it.
_ZERO_TO_ZERO = """
    abs alias amax amin asin asinh atan atanh avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d as_strided celu
    clone contiguous conj_physical _conj detach dot elu embedding erf
    expand expm1 _fft_c2c _fft_c2r _fft_r2c gelu hardshrink hardswish index_select
    index leaky_relu linalg_vector_norm lift_fresh log1p max_pool1d_with_indices
    max_pool2d_with_indices max_pool3d_with_indices mean mish mv native_dropout neg norm
    permute pixel_shuffle pixel_unshuffle _prelu_kernel relu repeat reshape
    _reshape_alias resolve_conj roll flip round select sgn sign silu sin sinh slice
    softshrink split split_with_sizes sqrt square squeeze stack sum t tan tanh _to_copy
    transpose trunc unbind unfold _unsafe_view unsqueeze unsafe_split view
    unsafe_split_with_sizes view_as_complex view_as_real channel_shuffle
"""
_KEEPS_ZERO = frozenset(_ZERO_TO_ZERO.split())
_PRODUCTS = ("mul", "mm", "bmm", "_trilinear")
_SUMS = ("add", "sub")


def is_silent(call: Call, layers: Sequence[Layer]) -> bool:
    """Tell whether outputs with these `layers` are silent."""
    name = call.func.overloadpacket.__name__.rstrip("_")
    operands = list(call.tensors())
    labelled = [operand for operand in operands if operand.layers]
    space = call.space
    dims = {dim for layer in layers for dim in space.varying(layer)}
    if not labelled or not dims:
        return False
    if name in _KEEPS_ZERO or _keeps_zero(call, name):
        return all(operand.silent for operand in labelled)
    if name in ("cat", "stack"):
        return all(operand.silent for operand in operands if operand.value.numel())
    if name in _PRODUCTS:
        return dims <= _covered(space, name, operands)
    if name in _SUMS:
        if not isinstance(call.arguments["other"], Tensor):
            return False
        rank = call.outputs[0].dim()
        return all(k.silent and dims <= _dims(space, k, rank) for k in operands)
    if name in ("addmm", "baddbmm"):
        bias, *factors = operands
        rank = call.outputs[0].dim()
        covered = _covered(space, "mm", factors)
        return bias.silent and dims <= covered & _dims(space, bias, rank)
    if name == "div":
        rank = call.outputs[0].dim()
        top = call.operand("self")
        return top.silent and dims <= _dims(space, top, rank)
    if name == "convolution":
        return all(k.silent for k in call.operands("weight", "bias"))
    if name in ("native_batch_norm", "native_group_norm"):
        affine = call.operands("weight", "bias")
        return len(affine) == 2 and all(k.silent for k in affine)
    return name == "_weight_norm_interface" and all(k.silent for k in labelled)


def _keeps_zero(call: Call, name: str) -> bool:
    """Tell whether zeros stay zero with the plain arguments of this call."""
    arguments = call.arguments
    if name == "pow":
        exponent = arguments["exponent"]
        return _is_number(exponent) and bool(exponent > 0)
    if name == "masked_fill":
        value = arguments["value"]
        return _is_number(value) and bool(value == 0)
    if name in ("clamp", "hardtanh"):
        ends = [arguments.get(k, arguments.get(f"{k}_val")) for k in ("min", "max")]
        low, high = (0 if end is None else end for end in ends)
        return _is_number(low) and _is_number(high) and bool(low <= 0 <= high)
    if name == "clamp_min":
        return _is_number(arguments["min"]) and bool(arguments["min"] <= 0)
    return name == "constant_pad_nd" and bool(arguments["value"] == 0)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _dims(space: LabelSpace, operand: Operand, rank: int) -> set[int]:
    """Return the dims of a result of that rank along which `operand` has units."""
    missing = rank - operand.value.dim()
    return {dim + missing for k in operand.layers for dim in space.varying(k)}


def _covered(space: LabelSpace, name: str, factors: Sequence[Operand]) -> set[int]:
    """Return the dims of a product along which a silent factor has its units."""
    rank = max(factor.value.dim() for factor in factors)
    summed = {0: rank - 1, 1: rank - 2} if name in ("mm", "bmm") else {}
    covered: set[int] = set()
    for number, factor in enumerate(factors):
        if factor.silent:
            covered |= _dims(space, factor, rank) - {summed.get(number, -1)}
    return covered
