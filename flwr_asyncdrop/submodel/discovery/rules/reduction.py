"""Operations that reduce, pool or normalise along some dims."""

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Rule

_STATISTICS = ("mean", "var", "std", "var_mean")


def reduce(call: Call) -> Labels:
    """Sum, average or search over dims; units that would all be reduced freeze.

    They do not if nobody uses the result, like the average of attention's heads. A
    statistic that keeps its dims, to be applied to the units again, makes a stream of
    them: a normalisation written by hand.
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
            reason = "reduced over by {op}: the result would change"
            call.space.freeze_if_used(layer, reason)
            continue
        joined = call.space.collapse(layer, varying & reduced).expand(
            [1 if dim in reduced else size for dim, size in enumerate(layer.shape)]
        )
        layers.append(joined.reshape(call.outputs[0].shape))
    return [layers for _ in call.outputs]


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
    for layer in source.layers:
        if dim in call.space.varying(layer):
            call.space.freeze(layer, "depend on each other in {op}")
    return [source.layers for _ in call.outputs]


RULES: dict[str, Rule] = {
    "mean sum amax amin var std prod max min argmax argmin": reduce,
    "linalg_vector_norm var_mean logsumexp any all": reduce,
    "_softmax _safe_softmax _log_softmax cumsum": along_dim,
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
