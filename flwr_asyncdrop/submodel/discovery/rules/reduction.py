"""Operations that reduce, pool or normalise along some dims."""

import math

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Rule
from flwr_asyncdrop.submodel.discovery.labels import along
from flwr_asyncdrop.submodel.discovery.rules.contraction import (
    channels,
    freeze_other_dims,
)
from flwr_asyncdrop.submodel.discovery.rules.pointwise import unify

_STATISTICS = ("mean", "var", "std", "var_mean")


def reduce(call: Call) -> Labels:
    """Sum, average or search over dims; units that would all be reduced freeze.

    They do not if nobody uses the result, like the average of attention's heads, or
    if they add nothing to a sum or a norm once they are zero. A statistic that keeps
    its dims, to be applied to the units again, makes a stream of them: a normalisation
    written by hand.
    """
    source = call.operand("self")
    rank = source.value.dim()
    dims = call.arguments.get("dim")
    if dims is None or dims == []:
        dims = list(range(rank))
    reduced = {dim % rank for dim in ([dims] if isinstance(dims, int) else dims)}
    layers = []
    for layer in source.layers:
        varying = call.space.varying(layer)
        if varying <= reduced and call.space.streams and _is_statistic(call):
            call.space.normalise(layer)
            continue
        if varying <= reduced:
            if source.silent and _ignores_zeros(call):
                continue
            reason = "reduced over by {op}: the result would change"
            call.space.freeze_if_used(layer, reason)
            continue
        joined = call.space.collapse(layer, varying & reduced).expand(
            [1 if dim in reduced else size for dim, size in enumerate(layer.shape)]
        )
        layers.append(joined.reshape(call.outputs[0].shape))
    return [layers for _ in call.outputs]


def _ignores_zeros(call: Call) -> bool:
    """Whether the result stays the same without the zeros among the values."""
    order = call.arguments.get("ord", call.arguments.get("p", 2))
    name = call.func.overloadpacket.__name__
    norm = name in ("linalg_vector_norm", "norm") and (order is None or order >= 0)
    return name == "sum" or norm


def _is_statistic(call: Call) -> bool:
    """Whether the call yields a mean or a spread, to be broadcast over the units."""
    name = call.func.overloadpacket.__name__
    return name in _STATISTICS and bool(call.arguments.get("keepdim"))


def pool(spatial: int) -> Rule:
    """Return the rule for pooling or resampling over the last `spatial` dims."""

    def rule(call: Call) -> Labels:
        source, *_ = call.tensors()
        layers = []
        for layer in source.layers:
            rank = layer.dim()
            joined = call.space.collapse(layer, range(rank - spatial, rank))
            outer = [*layer.shape[: rank - spatial], *[1] * spatial]
            layers.append(joined.expand(outer).expand(call.outputs[0].shape))
        return [layers for _ in call.outputs]

    return rule


def along_dim(call: Call) -> Labels:
    """Softmax and running sums: units along the dim depend on each other."""
    source = call.operand("self")
    dim = call.arguments["dim"] % source.value.dim()
    layers = []
    for layer in source.layers:
        if dim in call.space.varying(layer):
            call.space.freeze(layer, "depend on each other in {op}")
        else:
            layers.append(layer.narrow(dim, 0, 1).expand(call.outputs[0].shape))
    return [layers for _ in call.outputs]


def corner(call: Call) -> Labels:
    """Zero a corner of a matrix: its rows and columns are not alike."""
    source = call.operand("self")
    corner_dims = {source.value.dim() - 1, source.value.dim() - 2}
    for layer in source.layers:
        if call.space.varying(layer) & corner_dims:
            call.space.freeze(layer, "not alike in {op}")
    return [source.layers]


def unpool(spatial: int) -> Rule:
    """Return the rule for putting pooled values back where they came from."""

    def rule(call: Call) -> Labels:
        values, places = call.operand("self"), call.operand("indices")
        unify(call.space, [values, places], values.value.shape)
        return pool(spatial)(call)

    return rule


def unfold(call: Call) -> Labels:
    """Lay patches side by side: a channel becomes as many as its kernel is large."""
    size = math.prod(call.arguments["kernel_size"])
    shape = call.outputs[0].shape
    dim = len(shape) - 2
    vectors = channels(call.space, call.operand("self"), dim)
    _freeze_beside(call, {dim})
    return [[along(k.repeat_interleave(size), shape, dim) for k in vectors]]


def fold(call: Call) -> Labels:
    """Add patches up: as many channels as the kernel is large become one."""
    size = math.prod(call.arguments["kernel_size"])
    shape = call.outputs[0].shape
    dim = call.operand("self").value.dim() - 2
    _freeze_beside(call, {dim})
    layers = []
    for vector in channels(call.space, call.operand("self"), dim):
        rows = vector.view(-1, size)
        layers.append(along(call.space.collapse(rows, [1])[:, 0], shape, dim))
    return [layers]


def sample(spatial: int) -> Rule:
    """Return the rule for reading an image at positions that a grid gives."""

    def rule(call: Call) -> Labels:
        for layer in call.operand("grid").layers:
            call.space.freeze(layer, "used as positions by {op}")
        return pool(spatial)(call)

    return rule


def _freeze_beside(call: Call, dims: set[int]) -> None:
    source = call.operand("self")
    freeze_other_dims(call.space, source, dims, "positions that {op} slides over")


RULES: dict[str, Rule] = {
    "mean sum amax amin var std prod max min argmax argmin": reduce,
    "linalg_vector_norm norm var_mean logsumexp any all": reduce,
    "median nanmedian kthvalue mode": reduce,
    "_softmax _safe_softmax _log_softmax cumsum cumprod logcumsumexp": along_dim,
    "cummax cummin sort topk _cummax_helper": along_dim,
    "tril triu tril_ triu_": corner,
    "im2col": unfold,
    "col2im": fold,
    "grid_sampler_2d": sample(2),
    "grid_sampler_3d": sample(3),
    "max_unpool2d": unpool(2),
    "max_unpool3d": unpool(3),
    "_upsample_nearest_exact1d": pool(1),
    "_upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa": pool(2),
    "_upsample_nearest_exact3d reflection_pad3d replication_pad3d": pool(3),
    "fractional_max_pool2d": pool(2),
    "fractional_max_pool3d": pool(3),
    "avg_pool1d adaptive_avg_pool1d max_pool1d_with_indices": pool(1),
    "upsample_nearest1d upsample_linear1d": pool(1),
    "avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d": pool(2),
    "max_pool2d_with_indices upsample_nearest2d upsample_bilinear2d": pool(2),
    "reflection_pad1d replication_pad1d": pool(1),
    "reflection_pad2d replication_pad2d": pool(2),
    "upsample_bicubic2d": pool(2),
    "avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d": pool(3),
    "max_pool3d_with_indices upsample_nearest3d upsample_trilinear3d": pool(3),
}
