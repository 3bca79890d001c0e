"""Complex numbers and Fourier transforms."""

from flwr_asyncdrop.submodel.discovery.call import Call, Labels, Rule


def transform(call: Call) -> Labels:
    """Transform along some dims: units along them depend on each other."""
    source = call.operand("self")
    dims = {dim % source.value.dim() for dim in call.arguments["dim"]}
    layers = []
    for layer in source.layers:
        if call.space.varying(layer) & dims:
            call.space.freeze(layer, "depend on each other in {op}")
            continue
        for dim in dims:
            layer = layer.narrow(dim, 0, 1)
        layers.append(layer.expand(call.outputs[0].shape))
    return [layers]


def as_complex(call: Call) -> Labels:
    """Join the units of the real and the imaginary parts."""
    layers = []
    for layer in call.operand("self").layers:
        last = layer.dim() - 1
        joined = call.space.collapse(layer, [last])
        layers.append(joined[..., 0].expand(layer.shape[:last]))
    return [layers]


def as_real(call: Call) -> Labels:
    """Give both parts of a number its unit."""
    shape = call.outputs[0].shape
    return [[k.unsqueeze(-1).expand(shape) for k in call.operand("self").layers]]


RULES: dict[str, Rule] = {
    "_fft_r2c _fft_c2r _fft_c2c": transform,
    "view_as_complex": as_complex,
    "view_as_real": as_real,
}
